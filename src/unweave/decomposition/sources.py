"""Sources: sets of sites whose relevant part is given, β = activation − ablation."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unweave.ablation import Ablation, Positions, position_mask
from unweave.decomposition.split import Split
from unweave.errors import UnweaveError
from unweave.model.model import Model
from unweave.model.program import Inputs
from unweave.sites import Point, Site, parse


@dataclass(frozen=True)
class Source:
    """One or more sites that are relevant together."""

    sites: tuple[Site, ...]

    @property
    def first(self) -> Point:
        """The point where this source enters the forward pass."""
        return min((site.point for site in self.sites), key=lambda point: point.depth)

    def __str__(self) -> str:
        return " + ".join(map(str, self.sites))


def read_sources(
    model: Model, sources: "str | Sequence[str | Site | Sequence[str | Site]]"
) -> list[Source]:
    """Sources from names; "heads" and "mlps" stand for all of them, "heads@end" at a position.

    Raises:
        UnweaveError: For a site that this model does not have.
    """
    names: Sequence = [sources] if isinstance(sources, str) else sources
    result = []
    for name in names:
        if isinstance(name, str) and name.partition("@")[0] in ("heads", "mlps"):
            kind, _, position = name.partition("@")
            every = model.heads() if kind == "heads" else model.mlps()
            where = parse(f"embed@{position}").position if position else None
            result += [Source((site.at(where),)) for site in every]
            continue
        single = isinstance(name, str | Site)
        result.append(Source(tuple(parse(item) for item in ([name] if single else name))))
    if not result:
        raise UnweaveError("no source given: name sites such as a9.h6, or 'heads'")
    for source in result:
        for site in source.sites:
            model.check_site(site)
            if site.point.kind == "logits":
                raise UnweaveError(
                    f"{site} cannot be a source: nothing lies downstream of it, name one before it"
                )
    return result


@dataclass(frozen=True, eq=False)
class SourceSeeds:
    """Where each source of a run sets its relevant part.

    Args:
        by_point: For each point: source number, unit and positions of every site there.
        ablation: What a source is compared with.
    """

    by_point: Mapping[Point, list[tuple[int, int | None, Bool[Tensor, "batch position"] | None]]]
    ablation: Ablation

    def insert(
        self, x: Split, point: Point, chunk: range, left: Int[Tensor, "batch n"] | None
    ) -> Split:
        """Sets β = T − μ at the sites of the chunk's sources that lie at this point.

        `left` holds the positions that are left where values have been cut to those read.
        """
        here = [s for s in self.by_point.get(point, ()) if s[0] in chunk]
        if not here:
            return x
        delta = x.total - self.ablation.at(point, x.total, left)
        # A difference that is only rounding is none: the shares of biases would let it grow.
        noise = 64 * torch.finfo(delta.dtype).eps * x.total.abs().amax(-1, keepdim=True)
        delta.masked_fill_(delta.abs().amax(-1, keepdim=True) <= noise, 0.0)
        delta = delta[:, x.start :]
        shape = (len(chunk), *delta.shape)
        rel = delta.new_zeros(shape) if x.rel is None else x.rel.clone()
        index = torch.arange(delta.shape[1], device=delta.device) + x.start
        index = index.expand(len(delta), -1) if left is None else left
        for source, unit, where in here:
            row, value = rel[source - chunk.start], delta
            if unit is not None:
                row, value = row[:, :, unit], delta[:, :, unit]
            if where is None:
                row.copy_(value)
            else:
                hit = where.gather(1, index)
                row[hit] = value[hit]
        return Split(rel, x.total, x.start)


def make_seeds(
    sources: Sequence[Source], inputs: Inputs, positions: Positions, ablation: Ablation
) -> SourceSeeds:
    """Sorts the sites of all sources by the point they lie at."""
    by_point = defaultdict(list)
    for number, source in enumerate(sources):
        for site in source.sites:
            where = position_mask(site, inputs, positions)
            by_point[site.point].append((number, site.unit, where))
    return SourceSeeds(dict(by_point), ablation)


def first_position(source: Source, inputs: Inputs, positions: Positions, causal: bool) -> int:
    """The first position that a source can reach: 0 unless attention is causal."""
    # What lies at the encoder's positions reaches every position of the decoder.
    points = [site.point for site in source.sites]
    if not causal or any(p.stack == "enc" or p.kind in ("ck", "cv") for p in points):
        return 0
    where = [position_mask(site, inputs, positions) for site in source.sites]
    return min((0 if w is None else _first(w) for w in where), default=0)


def _first(mask: Bool[Tensor, "batch position"]) -> int:
    """The first position that is set in any example; the last one where none is."""
    columns = mask.any(0).nonzero()
    return int(columns[0]) if len(columns) else mask.shape[1] - 1
