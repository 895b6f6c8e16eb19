"""`decompose` and `relevance`: the public face of the engine."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unweave.ablation import ZERO, Ablation, activations, position_index, position_mask, side_of
from unweave.batch import Batch, Readout
from unweave.circuits import Scores
from unweave.decomposition.engine import Job, check_devices, sweep_parts
from unweave.decomposition.jobs import LOGITS, Setting, Text
from unweave.decomposition.memory import kept_bytes, scores_bytes
from unweave.decomposition.precision import Precision, precision_note, widened
from unweave.decomposition.readers import (
    Keep,
    Kept,
    MetricScores,
    Pairs,
    Reader,
    pair_measures,
    targets_by_point,
)
from unweave.decomposition.readout import MetricHead, columns_of, metric_head
from unweave.decomposition.ruleset import RuleSet, find_rules
from unweave.decomposition.sources import Source, read_sources
from unweave.display.frames import frame
from unweave.display.tables import block, table
from unweave.distributed import agree, alone, ranks, summed
from unweave.errors import UnweaveError
from unweave.model.model import Model
from unweave.model.program import Inputs
from unweave.sites import Point, Site, parse

if TYPE_CHECKING:
    from pandas import DataFrame
    from plotly.graph_objects import Figure

Swept = tuple[Float[Tensor, "source batch"], Float[Tensor, "4 source target"], float | None]


@dataclass(frozen=True, eq=False)
class Decomposition:
    """Relevant parts of every source at every target.

    Args:
        sources: Names, in the order of the source axis.
        rel: By target name, β: [source, batch, position, …].
        total: By target name, T: [batch, position, …].
        mask: By target name, the positions that hold a real token.
        completeness: The largest relative difference, rounding only, that the run's checks found:
            totals against a plain run of the model, and what each rule makes of β = T.
        tf32: By how much TF32 changed a few sources that were also run in float32, as a share of
            the largest value; None where it was not used.
    """

    sources: tuple[str, ...]
    rel: Mapping[str, Float[Tensor, "source batch position *unit"]]
    total: Mapping[str, Float[Tensor, "batch position *unit"]]
    mask: Mapping[str, Bool[Tensor, "batch position"]]
    completeness: float
    tf32: float | None = None

    def rest(self, target: str) -> Float[Tensor, "source batch position *unit"]:
        """γ = T − β."""
        return self.total[target] - self.rel[target]

    def relevance(
        self, target: str, measure: Literal["ratio", "share"] = "ratio"
    ) -> Float[Tensor, "source batch"]:
        """R(s, t) per example: ‖β‖₁/‖γ‖₁ (eq. 16), or ‖β‖₁/(‖β‖₁ + ‖γ‖₁)."""
        if target not in self.rel:
            raise UnweaveError(f"{target!r} was not a target: known are {', '.join(self.rel)}")
        rel, rest = self.rel[target], self.rest(target)
        mask = self.mask[target].reshape(*rel.shape[1:3], *(1,) * (rel.ndim - 3))
        size = (rel.abs() * mask).flatten(2).sum(-1)
        other = (rest.abs() * mask).flatten(2).sum(-1)
        whole = other if measure == "ratio" else size + other
        return torch.where(size == 0, 0.0, size / whole.clamp(min=torch.finfo(size.dtype).tiny))

    def __repr__(self) -> str:
        return (
            f"Decomposition({len(self.sources)} sources → {', '.join(self.rel)}; "
            f"completeness {self.completeness:.0e})"
        )

    def to_frame(self) -> "DataFrame":
        """A row for each source, target and example, with both measures (needs pandas)."""
        rows: dict[str, list] = {name: [] for name in ("source", "target", "example")}
        measures: dict[str, list[float]] = {"ratio": [], "share": []}
        for target in self.rel:
            ratio, share = self.relevance(target), self.relevance(target, "share")
            for i, source in enumerate(self.sources):
                count = ratio.shape[1]
                rows["source"] += [source] * count
                rows["target"] += [target] * count
                rows["example"] += range(count)
                measures["ratio"] += ratio[i].tolist()
                measures["share"] += share[i].tolist()
        return frame({**rows, **measures})

    def plot(self) -> "Figure":
        """A plotly heatmap: which share of each target comes from each source, mean of examples."""
        from unweave.display.figures import matrix_heatmap

        return matrix_heatmap(self._shares(), self.sources, tuple(self.rel), "Share of the target")

    def _repr_html_(self) -> str:
        shares = [[f"{value:.3f}" for value in row] for row in self._shares()]
        rows = [(source, *row) for source, row in zip(self.sources, shares, strict=True)]
        notes = f"completeness {self.completeness:.0e}; share of each target, mean of examples"
        title = f"Decomposition of {len(self.sources)} sources"
        return block(title, (notes,), table(("source", *self.rel), rows))

    def _shares(self) -> list[list[float]]:
        """Source × target."""
        columns = [self.relevance(target, "share").mean(1) for target in self.rel]
        return torch.stack(columns, 1).tolist() if columns else [[] for _ in self.sources]


def decompose(
    model: Model,
    tokens: Text,
    sources: "str | Sequence[str | Site | Sequence[str | Site]]",
    targets: "str | Sequence[str]" = ("logits",),
    rules: str | RuleSet = "paper",
    ablation: "str | Ablation | Text" = "zero",
    positions: Mapping[str, Int[Tensor, " batch"]] | None = None,
    columns: Sequence[int] | None = None,
    memory: str | int | None = None,
    precision: Precision | None = None,
) -> Decomposition:
    """Splits activations at the targets into each source's relevant part and the rest.

    Args:
        tokens: A text, texts (padded, masked), or token ids [batch, position].
        sources: Site names; an inner list makes several sites one source; "heads" is all heads.
        targets: Site names, and "logits".
        rules: A rule set, its name, or a name with changes ("paper, attention=frozen").
        ablation: What sources are compared with: "zero", a `Ablation`, or counterfactual tokens.
        positions: Named positions: the index in each example.
        columns: Logit columns to compute; None for all.
        memory: What the call may take beyond the model, its result included, such as "4GB"; None
            takes half of what is free.
        precision: "float32", "tf32" (products of relevant parts, on a GPU) or "float64"; None is
            TF32 where the GPU has it, with a self-check, and else the model's own.

    Returns:
        β and T at every target, and how complete the split is.
    """
    model = widened(model, precision)
    inputs, given = model.inputs(tokens), read_sources(model, sources)
    check_devices(model.network, inputs, ZERO)
    names = [targets] if isinstance(targets, str) else list(targets)
    sites = [parse(name) for name in names]
    for site in sites:
        model.check_site(site)
    _warn_upstream(given, sites)
    if columns is not None:
        head = columns_of(model.network.head, torch.tensor(columns))
        model = replace(model, network=replace(model.network, head=head))
    points = frozenset(site.point for site in sites)
    named = dict(positions or {})
    setting = Setting(model, model.network, inputs, named, find_rules(rules), precision, memory)
    last = max(points, key=lambda point: point.depth)
    job = setting.job(
        given, ablation, points, None, last, lambda n: kept_bytes(model.network, inputs, sites, n)
    )
    return _kept(model, job, names, sites)


def _kept(model: Model, job: Job, names: Sequence[str], sites: Sequence[Site]) -> Decomposition:
    """Runs a job and keeps β and T at every target."""
    inputs = job.inputs
    wheres = [position_index(site, inputs, job.positions) for site in sites]
    store = Kept(job.rows, len(inputs.mask))

    def readers(part: slice) -> list[Reader]:
        return [Keep(targets_by_point(sites, wheres, part), part, store)]

    completeness, change = 0.0, None
    for part in sweep_parts(job, readers):
        completeness = max(completeness, part.completeness)
        change = part.tf32 if change is None else change
        # No source reached these points: they lie upstream of every one.
        keep = part.readers[0]
        assert isinstance(keep, Keep)
        unreached = {s.point for i, s in enumerate(sites) if not keep.reached(i)}
        keep.fill(activations(model, inputs.select(part.examples), unreached))
    count = len(job.sources)
    rel = {name: store.rel[i][:count] for i, name in enumerate(names)}
    total = {name: store.total[i] for i, name in enumerate(names)}
    mask = {n: _real(total[n], s, inputs) for n, s in zip(names, sites, strict=True)}
    sources = tuple(map(str, job.sources))
    return Decomposition(sources, rel, total, mask, completeness, change)


def relevance(
    model: Model,
    tokens: Text | Batch,
    sources: "str | Sequence[str | Site | Sequence[str | Site]]" = "heads",
    target: Readout | None = None,
    rules: str | RuleSet = "removal",
    ablation: "str | Ablation | Text" = "zero",
    pairs: "str | Sequence[str | Site]" = "heads",
    positions: Mapping[str, Int[Tensor, " batch"]] | None = None,
    normalise: bool = False,
    memory: str | int | None = None,
    precision: Precision | None = None,
) -> Scores:
    """Scores every source against a metric and against every inner target, in one sweep.

    Args:
        tokens: A `Batch` of a task (with its metric), or text with `target` given.
        target: The metric, bound to answers and read positions; None takes the batch's own.
        pairs: Inner targets for R(s, t): "heads", "heads@end", site names, or () for none.
        normalise: Divide each score by the mean magnitude of its source's layer.
        memory: As in `decompose`.
        precision: As in `decompose`; `about` tells by how much TF32 changed the scores.

    Returns:
        Scores, averaged over examples.
    """
    model = widened(model, precision)
    inputs, readout, named = _read_batch(model, tokens, target, positions)
    if isinstance(tokens, Batch) and ablation == "counterfactual":
        ablation = tokens.corrupted
    given, rule_set = read_sources(model, sources), find_rules(rules)
    inner = [s.sites[0] for s in read_sources(model, pairs)] if len(pairs) else []
    points = frozenset(site.point for site in inner)
    head = metric_head(model, inputs, readout, rule_set)
    # A classifier reads its first position; a target past the cut needs every position.
    where = torch.zeros_like(readout.read) if model.network.head.first else readout.read
    whole = any(point.depth > _cut(model).depth for point in points)
    setting = Setting(model, head.network, inputs, named, rule_set, precision, memory)
    reads = None if whole else where[:, None]
    job = setting.job(
        given,
        ablation,
        points,
        reads,
        LOGITS,
        lambda n: scores_bytes(head.network, inputs, n, len(inner)),
    )
    return _scored(model, job, head, inner, where if whole else torch.zeros_like(where), normalise)


def _read_batch(
    model: Model,
    tokens: Text | Batch,
    target: Readout | None,
    positions: Mapping[str, Int[Tensor, " batch"]] | None,
) -> tuple[Inputs, Readout, dict[str, Int[Tensor, " batch"]]]:
    """Inputs, metric and named positions, of a task's batch or as they are given."""
    batch = tokens if isinstance(tokens, Batch) else None
    inputs = tokens.clean if isinstance(tokens, Batch) else model.inputs(tokens)
    check_devices(model.network, inputs, ZERO)
    readout = target or (batch.readout if batch is not None else None)
    if readout is None:
        raise UnweaveError("no metric: pass target=Readout(…), or a task's batch as tokens")
    return inputs, readout, dict(positions or (batch.positions if batch is not None else {}))


def _masks(sites: Sequence[Site], job: Job) -> list[Bool[Tensor, "batch position"] | None]:
    """Where each site lies; sites at one position share a tensor, so that they share a sum."""
    found: dict[tuple, Tensor | None] = {}
    keys = [(site.position, id(side_of(site.point, job.inputs))) for site in sites]
    for key, site in zip(keys, sites, strict=True):
        if key not in found:
            found[key] = position_mask(site, job.inputs, job.positions)
    return [found[key] for key in keys]


def _scored(
    model: Model,
    job: Job,
    head: MetricHead,
    inner: Sequence[Site],
    at: Int[Tensor, " batch"],
    normalise: bool,
) -> Scores:
    """Runs a job and scores its sources against the metric and the inner targets."""
    values, sums, change = _shared_sweep(job, head, inner, at)
    mean = _finite(values.mean(1), job)
    about = {"rules": job.rules.name, "ablation": job.ablation.name, "model": model.name}
    about |= precision_note(change, len(job.rechecked))
    return Scores(
        tuple(map(str, job.sources)),
        (_per_layer(mean, job.sources) if normalise else mean).cpu(),
        values.cpu(),
        tuple(map(str, inner)),
        {k: v.cpu() for k, v in pair_measures(sums, len(at)).items()} if inner else {},
        about,
    )


def _shared_sweep(
    job: Job, head: MetricHead, inner: Sequence[Site], at: Int[Tensor, " batch"]
) -> Swept:
    """Under torchrun each process sweeps its share of the sources and prompts."""
    mine, like = ranks(), {"dtype": job.network.dtype, "device": job.network.device}
    if mine.count == 1:
        return _swept(job, head, inner, at)
    agree([*map(str, job.sources), "→", *map(str, inner)])
    values = torch.zeros(len(job.sources), len(at), **like)
    sums = torch.zeros(4, len(job.sources), len(inner), **like)
    changes = torch.full((mine.count,), 0.0, dtype=torch.float64)
    if (share := mine.share(*values.shape)) is not None:
        some, part = share
        weights = None if head.weights is None else head.weights[part]
        own = replace(head, readout=head.readout.select(part), weights=weights)
        with alone():
            values[share], sums[:, some], change = _swept(
                job.select(some, part), own, inner, at[part]
            )
        changes[mine.rank] = change or 0.0
    largest = float(summed(changes).max())
    return summed(values), summed(sums), largest if job.rechecked else None


def _swept(job: Job, head: MetricHead, inner: Sequence[Site], at: Int[Tensor, " batch"]) -> Swept:
    """Each source's metric on each example, sums for every pair, and what TF32 changed."""
    like = {"dtype": job.network.dtype, "device": job.network.device}
    values = torch.zeros(job.rows, len(at), **like)
    sums = torch.zeros(4, job.rows, len(inner), **like)
    wheres = _masks(inner, job)

    def readers(part: slice) -> list[Reader]:
        weights = None if head.weights is None else head.weights[part]
        readout = head.readout.select(part)
        targets = targets_by_point(inner, wheres, part)
        masks = {point: side_of(point, job.inputs).mask[part] for point in targets}
        return [
            MetricScores(readout, job.rules, weights, at[part], values[:, part]),
            Pairs(targets, masks, job.ablation.select(part), torch.zeros_like(sums)),
        ]

    change = None
    for part in sweep_parts(job, readers):
        pairs = part.readers[1]
        assert isinstance(pairs, Pairs)
        sums += pairs.sums
        change = part.tf32 if change is None else change
    count = len(job.sources)
    return values[:count], sums[:, :count], change


def _finite(mean: Float[Tensor, " source"], job: Job) -> Float[Tensor, " source"]:
    bad = (~torch.isfinite(mean)).nonzero().flatten().tolist()
    if bad:
        listed = ", ".join(str(job.sources[i]) for i in bad[:3])
        raise UnweaveError(
            f"rules {job.rules.name!r} overflowed for {listed}: use precision='float64' "
            "or recomputed norms (norm=removal)"
        )
    return mean


def _cut(model: Model) -> Point:
    """The last point at which every position is left."""
    blocks = model.network.body.blocks
    return Point("z" if blocks[-1].cross is None else "cz", len(blocks) - 1)


def _warn_upstream(sources: Sequence[Source], targets: Sequence[Site]) -> None:
    first = min(source.first.depth for source in sources)
    for target in targets:
        if target.point.depth < first:
            warnings.warn(
                f"target {target} lies upstream of every source: its relevance is 0", stacklevel=3
            )


def _real(
    total: Float[Tensor, "batch position *unit"], site: Site, inputs: Inputs
) -> Bool[Tensor, "batch position"]:
    """Which positions of a target hold a real token; all where it is read at one position."""
    mask = side_of(site.point, inputs).mask
    if site.position is None and total.shape[1] == mask.shape[1]:
        return mask
    return torch.ones(total.shape[:2], dtype=torch.bool, device=mask.device)


def _per_layer(values: Float[Tensor, " source"], sources: Sequence[Source]) -> Tensor:
    layers = [(source.first.stack, source.first.layer) for source in sources]
    scaled = values.clone()
    for layer in set(layers):
        here = torch.tensor([one == layer for one in layers])
        scaled[here] = values[here] / values[here].abs().mean().clamp(min=1e-30)
    return scaled
