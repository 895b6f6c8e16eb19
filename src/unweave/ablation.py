"""Ablations: the activation that stands for "without it", for sources and for ablation.

An ablation gives, for every named point, one tensor per example: zeros, the mean over a reference
distribution at the same position of the same template, or the paired counterfactual example's
own activation (docs/method.md §6).
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unweave.errors import NotFiniteError, UnweaveError
from unweave.model.algebra import Plain
from unweave.model.model import Model
from unweave.model.program import Inputs, Stream, stages
from unweave.progress import progress
from unweave.sites import OTHER, Point, Site


@dataclass(frozen=True, eq=False)
class Ablation:
    """Values by point, and for each example which row of them is its own.

    Args:
        name: "zero", "mean" or "counterfactual", or the user's own word.
        values: One tensor a point; a point that is not there counts as zero.
        rows: Row of `values` for each example; None when rows are the examples.
    """

    name: str
    values: Mapping[Point, Float[Tensor, "row position *unit"]] = field(default_factory=dict)
    rows: Int[Tensor, " batch"] | None = None

    def at(
        self,
        point: Point,
        total: Float[Tensor, "batch position *unit"],
        left: Int[Tensor, "batch position"] | None = None,
    ) -> Float[Tensor, "batch position *unit"]:
        """The ablation of a point, shaped like the activation it stands for.

        Args:
            left: The positions that `total` holds, where it does not hold all.
        """
        if point not in self.values:
            if self.values:
                raise UnweaveError(
                    f"ablation {self.name!r} holds nothing for {point}: record it there too"
                )
            return torch.zeros_like(total)
        values = self.values[point]
        values = values if self.rows is None else values[self.rows]
        if left is not None:
            values = values[torch.arange(len(left), device=left.device)[:, None], left]
        if values.shape != total.shape:
            raise UnweaveError(
                f"ablation {self.name!r} has shape {tuple(values.shape)} at {point}, the prompts "
                f"have {tuple(total.shape)}: they do not align; use ablation='counterfactual' "
                "with paired prompts of one length, or 'zero'"
            )
        return values

    def mapped(self, point: Point, f: Callable[[Tensor], Tensor]) -> "Ablation":
        """A function of the values of one point, each row of them once; 0 stays 0."""
        if point not in self.values:
            return self
        return replace(self, values={point: f(self.values[point])})

    def check_finite(self) -> None:
        """Raises `NotFiniteError` where a value is NaN or infinite."""
        for point, values in self.values.items():
            if not values.isfinite().all():
                raise NotFiniteError(
                    f"the {self.name} ablation is not finite at {point}: look for NaN or infinite "
                    "values in the model's weights, for instance in the embedding of a token that "
                    "only the corrupted or reference prompts have"
                )

    def select(self, examples: slice | Int[Tensor, " n"]) -> "Ablation":
        """The ablation of a part of the batch."""
        if self.rows is not None:
            return replace(self, rows=self.rows[examples])
        return replace(self, values={p: v[examples] for p, v in self.values.items()})

    def at_points(self, points: Collection[Point]) -> "Ablation":
        """The ablation of some of its points."""
        return replace(self, values={p: v for p, v in self.values.items() if p in points})


ZERO = Ablation("zero")
# Reference prompts in one run; a GPU is hardly busy with fewer.
_CPU_ROWS, _GPU_ROWS = 32, 128

Positions = Mapping[str, Int[Tensor, " batch"]]


def side_of(point: Point, inputs: Inputs) -> Inputs:
    """The tokens whose positions an activation has: keys and values of cross-attention have the
    encoder's."""
    if inputs.decoder is None or point.stack == "enc" or point.kind in ("ck", "cv"):
        return inputs
    return inputs.decoder


def position_index(
    site: Site, inputs: Inputs, positions: Positions
) -> Int[Tensor, " batch"] | None:
    """The position of a site in each example; None for every position.

    A number counts the real tokens of a prompt, from its end when negative; a name is looked up.

    Raises:
        UnweaveError: For an unknown name, or an index outside a prompt.
    """
    if site.position is None:
        return None
    mask = side_of(site.point, inputs).mask
    if isinstance(site.position, str):
        return _named(site, site.position, mask, positions)
    lengths, index = mask.sum(-1), site.position
    if not -int(lengths.min()) <= index < int(lengths.min()):
        raise UnweaveError(
            f"{site}: position {index} is outside a prompt of {int(lengths.min())} tokens: "
            "choose one inside, or longer prompts"
        )
    first = mask.long().argmax(-1)  # past padding on the left
    return first + (index if index >= 0 else lengths + index)


def position_mask(
    site: Site, inputs: Inputs, positions: Positions
) -> Bool[Tensor, "batch position"] | None:
    """Where a site lies in each example; None for every position.

    The position `other` is every real token that no name points at. A name with a space in it
    cannot be written in a site: it is the caller's own, and takes nothing from `other`.

    Raises:
        UnweaveError: As `position_index`.
    """
    mask = side_of(site.point, inputs).mask
    columns = torch.arange(mask.shape[1], device=mask.device)
    if site.position != OTHER:
        index = position_index(site, inputs, positions)
        return None if index is None else columns == index[:, None]
    named = torch.zeros_like(mask)
    for name in (name for name in positions if " " not in name):
        named |= columns == _named(site, name, mask, positions)[:, None]
    return mask & ~named


def _named(
    site: Site,
    name: str,
    mask: Bool[Tensor, "batch position"],
    positions: Mapping[str, Int[Tensor, " given"]],
) -> Int[Tensor, " batch"]:
    if name not in positions:
        known = ", ".join(positions) or "none; use a number such as @3"
        raise UnweaveError(f"{site}: no position is named {name!r}; known: {known}")
    where = positions[name].to(mask.device)
    if len(where) != len(mask):
        raise UnweaveError(
            f"{site}: {len(where)} positions are given for {len(mask)} prompts: give one for each"
        )
    inside = (where >= 0) & (where < mask.shape[1])
    inside &= mask.gather(1, where.clamp(0, mask.shape[1] - 1)[:, None])[:, 0]
    if not inside.all():
        example = int((~inside).nonzero()[0])
        raise UnweaveError(
            f"{site}: position {int(where[example])} is outside prompt {example} of "
            f"{int(mask[example].sum())} tokens: correct the named position"
        )
    return where


@dataclass(eq=False)
class Read(Plain):
    """A plain run that keeps the activations at some points."""

    points: frozenset[Point]
    found: dict[Point, Tensor] = field(default_factory=dict)

    def at(self, x: Tensor, point: Point) -> Tensor:
        if point in self.points:
            self.found[point] = x
        return x


def activations(
    model: Model, inputs: Inputs, points: Iterable[Point]
) -> dict[Point, Float[Tensor, "batch position *unit"]]:
    """Activations at named points of a plain run, which stops after the last of them."""
    ops = Read(frozenset(points))
    stream: Stream[Tensor] | None = None
    with torch.no_grad():
        for stage in stages(model.network, inputs):
            if len(ops.found) == len(ops.points):
                break
            stream = stage.apply(ops, stream)
    return ops.found


def counterfactual(
    model: Model, inputs: Inputs, points: Iterable[Point], rows_at_once: int = 32
) -> Ablation:
    """Each example's paired counterfactual prompt, run as it is."""
    points = list(points)
    parts = [
        activations(model, inputs.select(slice(i, i + rows_at_once)), points)
        for i in range(0, len(inputs.mask), rows_at_once)
    ]
    found = Ablation("counterfactual", {p: torch.cat([x[p] for x in parts]) for p in points})
    found.check_finite()
    return found


@dataclass(frozen=True, eq=False)
class GroupMeans:
    """Mean activation per group and position over reference prompts.

    Args:
        groups: The groups that there are prompts of, in the order of the rows.
        values: By point, one row a group.
        own: Points whose positions are the decoder's of an encoder-decoder: the same tokens for
            all prompts.
    """

    groups: Int[Tensor, " row"]
    values: Mapping[Point, Float[Tensor, "row position *unit"]]
    own: frozenset[Point] = frozenset()

    @staticmethod
    def over(
        model: Model,
        reference: Inputs,
        groups: Int[Tensor, " reference"],
        points: Iterable[Point],
    ) -> "GroupMeans":
        """Runs the reference prompts.

        Args:
            groups: Group of each prompt; prompts of a group align token by token.
        """
        known, rows = groups.unique(return_inverse=True)
        points, sums = list(points), {}
        rows_at_once = _GPU_ROWS if model.network.device.type == "cuda" else _CPU_ROWS
        with progress("Averaging over reference prompts", len(groups)) as advance:
            for i in range(0, len(reference.mask), rows_at_once):
                part = slice(i, i + rows_at_once)
                for point, x in activations(model, reference.select(part), points).items():
                    if point not in sums:
                        sums[point] = x.new_zeros(len(known), *x.shape[1:])
                    sums[point].index_add_(0, rows[part], x)
                advance(len(rows[part]))
        sizes = torch.bincount(rows)
        values = {p: s / sizes.reshape(-1, *(1,) * (s.ndim - 1)) for p, s in sums.items()}
        Ablation("mean", values).check_finite()
        own = frozenset(p for p in points if side_of(p, reference) is not reference)
        return GroupMeans(known, values, own)

    def ablation(self, batch_groups: Int[Tensor, " batch"], length: int) -> Ablation:
        """The means as an ablation of a batch.

        Args:
            batch_groups: Group of each example.
            length: Positions of the batch: longer or shorter padding is cut or filled with zeros.

        Raises:
            UnweaveError: When an example's group has no reference prompt.
        """
        wanted = (batch_groups[:, None] == self.groups).long()
        if not bool(wanted.any(1).all()):
            raise UnweaveError(
                f"{int((~wanted.any(1)).sum())} prompts have no reference prompt of their template "
                "and length: draw more reference prompts, or use ablation='counterfactual'"
            )
        values = {p: x if p in self.own else _fitted(x, length) for p, x in self.values.items()}
        return Ablation("mean", values, wanted.argmax(1))


def _fitted(
    x: Float[Tensor, "row position *unit"], length: int
) -> Float[Tensor, "row length *unit"]:
    """Cut, or filled with zeros, to another number of positions."""
    if x.shape[1] >= length:
        return x[:, :length]
    return torch.cat((x, x.new_zeros(len(x), length - x.shape[1], *x.shape[2:])), 1)


def means(
    model: Model,
    reference: Inputs,
    groups: Int[Tensor, " reference"],
    batch_groups: Int[Tensor, " batch"],
    length: int,
    points: Iterable[Point],
) -> Ablation:
    """Mean activation per group and position over reference prompts, for one batch.

    Args:
        groups: Group of each reference prompt; prompts of a group align token by token.
        batch_groups: Group of each example that the ablation will serve.
        length: Positions of that batch.

    Raises:
        UnweaveError: When an example's group has no reference prompt.
    """
    return GroupMeans.over(model, reference, groups, points).ablation(batch_groups, length)
