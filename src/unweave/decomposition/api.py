"""`decompose` and `relevance`: the public face of the engine."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unweave.ablation import (
    ZERO,
    Ablation,
    activations,
    counterfactual,
    position_index,
    side_of,
)
from unweave.batch import Batch, Readout
from unweave.circuits import Scores
from unweave.decomposition.engine import Interrupted, Job, check_devices, drive
from unweave.decomposition.memory import memory_budget
from unweave.decomposition.readers import Keep, MetricScores, Pairs, PairTarget, pair_targets
from unweave.decomposition.readout import columns_of, reader
from unweave.decomposition.ruleset import RuleSet, find_rules
from unweave.decomposition.sources import Source, read_sources
from unweave.errors import UnweaveError
from unweave.model.model import Model
from unweave.model.program import Inputs
from unweave.sites import Point, Site, parse

Text = str | Sequence[str] | Int[Tensor, "batch position"] | Inputs
Measure = Literal["ratio", "share", "signed"]
Precision = Literal["float64", "tf32"]

LOGITS = Point("logits")


@dataclass(frozen=True, eq=False)
class Decomposition:
    """Relevant parts of every source at every target.

    Args:
        sources: Names, in the order of the source axis.
        rel: By target name, β: [source, batch, position, …].
        total: By target name, T: [batch, position, …].
        mask: By target name, the positions that hold a real token.
        completeness: How far the totals lie from a plain run of the model (rounding only).
    """

    sources: tuple[str, ...]
    rel: Mapping[str, Float[Tensor, "source batch position *unit"]]
    total: Mapping[str, Float[Tensor, "batch position *unit"]]
    mask: Mapping[str, Bool[Tensor, "batch position"]]
    completeness: float

    def rest(self, target: str) -> Float[Tensor, "source batch position *unit"]:
        """γ = T − β."""
        return self.total[target] - self.rel[target]

    def relevance(
        self, target: str, measure: Literal["ratio", "share"] = "ratio"
    ) -> Float[Tensor, "source batch"]:
        """R(s, t) per example: ‖β‖₁/‖γ‖₁ (eq. 18), or ‖β‖₁/(‖β‖₁ + ‖γ‖₁)."""
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
        memory: Budget such as "4GB"; None takes half of what is free.
        precision: "float64", or "tf32" for products of relevant parts on a GPU.

    Returns:
        β and T at every target, and how complete the split is.
    """
    model = _with_precision(model, precision)
    inputs, given = model.inputs(tokens), read_sources(model, sources)
    check_devices(model.network, inputs, ZERO)
    names = [targets] if isinstance(targets, str) else list(targets)
    sites = [parse(name) for name in names]
    for site in sites:
        model.check_site(site)
    _warn_upstream(given, sites)
    network = model.network
    if columns is not None:
        network = replace(network, head=columns_of(network.head, torch.tensor(columns)))
    points = frozenset(site.point for site in sites)
    rule_set, named = find_rules(rules), dict(positions or {})
    job = Job(
        network=network,
        inputs=inputs,
        sources=given,
        positions=named,
        ablation=_ablation(model, ablation, given, points, inputs),
        rules=rule_set,
        reads=None,
        last=max(points, key=lambda point: point.depth),
        kept=0,
        budget=memory_budget(memory, network.device),
        tf32=precision == "tf32",
    )
    kept: dict[int, Keep] = {}  # by first example: a part that ran out of memory is begun again

    def collectors(part: slice) -> list[Keep]:
        kept[part.start] = Keep(points, len(given), part)
        return [kept[part.start]]

    completeness, parts = drive(job, collectors), list(kept.values())
    for keep in parts:
        # No source reached these points: they lie upstream of every one.
        keep.fill(activations(model, inputs.select(keep.part), points - keep.rel.keys()))
    read = dict(zip(names, sites, strict=True))
    rel = {n: _joined([k.rel for k in parts], s, 1, inputs, named) for n, s in read.items()}
    total = {n: _joined([k.total for k in parts], s, 0, inputs, named) for n, s in read.items()}
    mask = {n: _real(total[n], s, inputs) for n, s in read.items()}
    return Decomposition(tuple(map(str, given)), rel, total, mask, completeness)


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

    Returns:
        Scores, averaged over examples. On Ctrl-C, those of the examples that were finished.
    """
    model = _with_precision(model, precision)
    batch = tokens if isinstance(tokens, Batch) else None
    inputs = tokens.clean if isinstance(tokens, Batch) else model.inputs(tokens)
    check_devices(model.network, inputs, ZERO)
    readout = target or (batch.readout if batch is not None else None)
    if readout is None:
        raise UnweaveError("no metric: pass target=Readout(…), or a task's batch as tokens")
    named = dict(positions or (batch.positions if batch is not None else {}))
    if batch is not None and ablation == "counterfactual":
        ablation = batch.corrupted
    given, rule_set = read_sources(model, sources), find_rules(rules)
    inner = [s.sites[0] for s in read_sources(model, pairs)] if len(pairs) else []
    points = frozenset(site.point for site in inner)
    read = reader(model, inputs, readout, rule_set)
    # A classifier reads its first position; a target past the cut needs every position.
    where = torch.zeros_like(readout.read) if model.network.head.first else readout.read
    whole = any(point.depth > _cut(model).depth for point in points)
    job = Job(
        network=read.network,
        inputs=inputs,
        sources=given,
        positions=named,
        ablation=_ablation(model, ablation, given, points, inputs),
        rules=rule_set,
        reads=None if whole else where[:, None],
        last=LOGITS,
        kept=0,
        budget=memory_budget(memory, model.network.device),
        tf32=precision == "tf32",
    )
    like = {"dtype": model.network.dtype, "device": model.network.device}
    values = torch.zeros(len(given), len(inputs.mask), **like)
    sums = torch.zeros(4, len(given), len(inner), **like)
    pending: dict[int, Tensor] = {}

    def collectors(part: slice) -> list:
        _commit(pending, sums, part.start)
        fresh = pending[part.start] = torch.zeros_like(sums)
        weights = None if read.weights is None else read.weights[part]
        at = where[part] if whole else torch.zeros_like(where[part])
        metric = MetricScores(read.readout.select(part), rule_set, weights, at, values[:, part])
        sited = [PairTarget(s, position_index(s, inputs, named)) for s in inner]
        sited = [replace(t, where=None if t.where is None else t.where[part]) for t in sited]
        masks = {point: side_of(point, inputs).mask[part] for point in points}
        return [
            metric,
            Pairs(pair_targets(sited), masks, job.ablation.select(part), *fresh),
        ]

    try:
        drive(job, collectors)
        finished = len(inputs.mask)
    except Interrupted as interrupt:
        if interrupt.examples == 0:
            raise
        finished = interrupt.examples
        warnings.warn(
            f"interrupted: scores cover the first {finished} of {len(inputs.mask)} examples",
            stacklevel=2,
        )
    _commit(pending, sums, finished)
    examples = values[:, :finished]
    mean = examples.mean(1)
    if not torch.isfinite(mean).all():
        worst = [str(given[i]) for i in (~torch.isfinite(mean)).nonzero().flatten().tolist()[:3]]
        raise UnweaveError(
            f"rules {rule_set.name!r} overflowed for {', '.join(worst)}: use precision='float64' "
            "or recomputed norms (norm=removal)"
        )
    if normalise:
        mean = _per_layer(mean, given)
    measures = Pairs({}, {}, job.ablation, *sums).measures(finished) if inner else {}
    return Scores(
        tuple(map(str, given)),
        mean.cpu(),
        examples.cpu(),
        tuple(map(str, inner)),
        {name: value.cpu() for name, value in measures.items()},
        {"rules": rule_set.name, "ablation": job.ablation.name, "model": model.name},
    )


def _commit(pending: dict[int, Tensor], sums: Tensor, done: int) -> None:
    """Adds the sums of the parts before example `done`; the others are not finished."""
    for start in [start for start in pending if start < done]:
        sums += pending.pop(start)


def _cut(model: Model) -> Point:
    """The last point at which every position is left."""
    blocks = model.network.body.blocks
    return Point("z" if blocks[-1].cross is None else "cz", len(blocks) - 1)


def _ablation(
    model: Model,
    given: "str | Ablation | Text",
    sources: Sequence[Source],
    points: frozenset[Point],
    inputs: Inputs,
) -> Ablation:
    """The ablation at every point of a source or a scored target."""
    if isinstance(given, Ablation):
        return given
    if isinstance(given, str) and given == "zero":
        return ZERO
    if isinstance(given, str) and given in ("mean", "counterfactual"):
        raise UnweaveError(
            f"ablation {given!r} needs prompts: pass the counterfactual texts or tokens "
            "themselves, or unweave.means(…)"
        )
    other = model.inputs(given)
    if other.mask.shape != inputs.mask.shape:
        raise UnweaveError(
            f"counterfactual prompts are {tuple(other.mask.shape)} tokens, the clean ones "
            f"{tuple(inputs.mask.shape)}: they must align token by token"
        )
    needed = {site.point for source in sources for site in source.sites} | points
    return counterfactual(model, other, needed - {LOGITS})


def _warn_upstream(sources: Sequence[Source], targets: Sequence[Site]) -> None:
    first = min(source.first.depth for source in sources)
    for target in targets:
        if target.point.depth < first:
            warnings.warn(
                f"target {target} lies upstream of every source: its relevance is 0", stacklevel=3
            )


def _joined(
    parts: Sequence[Mapping[Point, Tensor]], site: Site, axis: int, inputs: Inputs, named: Mapping
) -> Tensor:
    """The tensors of all parts at one site: its unit, its position."""
    whole = torch.cat([part[site.point] for part in parts], dim=axis)
    if site.unit is not None:
        whole = whole.select(axis + 2, site.unit)
    where = position_index(site, inputs, named)
    if where is None:
        return whole
    examples = torch.arange(len(where), device=where.device)
    picked = whole[:, examples, where] if axis else whole[examples, where]
    return picked.unsqueeze(axis + 1)


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


def _with_precision(model: Model, precision: Precision | None) -> Model:
    """Half-precision weights are widened: totals and elementwise work need float32."""
    if precision == "float64":
        return model if model.network.dtype == torch.float64 else model.to(torch.float64)
    if model.network.dtype in (torch.float16, torch.bfloat16):
        return model.to(torch.float32)
    return model
