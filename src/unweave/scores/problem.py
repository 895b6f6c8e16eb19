"""`Problem`: what scores and searches are given; `Reference`: what circuits are held against."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unweave.ablation import Ablation
from unweave.batch import Batch
from unweave.distributed import agree, alone, ranks, sharded, summed
from unweave.errors import NotFiniteError, UnweaveError
from unweave.estimates import Estimate, estimate
from unweave.model.model import Model
from unweave.patching.circuits import run_circuits
from unweave.patching.flips import run_flips
from unweave.sites import Point, Site

# Below this share of the metric's own size, m(M) − m(∅) is rounding and faithfulness has no scale.
_NO_SCALE = 1e-5


@dataclass(frozen=True, eq=False)
class Reference:
    """The two ends of the scale of faithfulness, on each example.

    Args:
        full: The metric of the model itself, nothing ablated.
        empty: The metric with every node ablated.
    """

    full: Float[Tensor, " batch"]
    empty: Float[Tensor, " batch"]

    @property
    def scale(self) -> Float[Tensor, ""]:
        """m(M) − m(∅).

        Raises:
            UnweaveError: When ablation does not move the metric by more than rounding, or the
                metric is not finite.
        """
        scale = self.full.double().mean() - self.empty.double().mean()
        size = float(torch.maximum(self.full.abs(), self.empty.abs()).double().mean())
        if not math.isfinite(float(scale)):
            raise NotFiniteError(
                f"the metric is {float(self.full.mean()):.4g} for the whole model and "
                f"{float(self.empty.mean()):.4g} with every node ablated: look for NaN or infinite "
                "values in the model's weights"
            )
        if abs(float(scale)) <= _NO_SCALE * size:
            raise UnweaveError(
                f"ablating every node leaves the metric at {float(self.empty.mean()):.4g} of "
                f"{float(self.full.mean()):.4g}: there is no effect to be faithful to; choose "
                "another --ablation, task or model"
            )
        return scale.to(self.full.dtype)

    def select(self, examples: slice | Int[Tensor, " n"]) -> "Reference":
        """The same for a part of the examples."""
        return Reference(self.full[examples], self.empty[examples])

    def faithfulness(self, metric: Float[Tensor, "*lead batch"]) -> Float[Tensor, "*lead"]:
        """`(m(C) − m(∅)) / (m(M) − m(∅))` of mean metrics (docs/method.md §9)."""
        return (metric.mean(-1) - self.empty.mean()) / self.scale

    def samples(self, metric: Float[Tensor, "*lead batch"]) -> Float[Tensor, "*lead batch"]:
        """Each example's part of faithfulness, to first order: their mean is faithfulness, and
        their spread its error (the ratio's denominator varies with the examples too)."""
        value = self.faithfulness(metric)[..., None]
        gap = metric - self.empty - value * (self.full - self.empty)
        return value + gap / self.scale

    def estimate(self, metric: Float[Tensor, " batch"]) -> Estimate:
        """Faithfulness with its 95% interval."""
        return estimate(self.samples(metric))


N = TypeVar("N", bound=Hashable)  # what circuits are made of
R = TypeVar("R", bound="Runs[Any]")


@dataclass(frozen=True, eq=False)
class Runs(ABC, Generic[N]):
    """Circuits of one behaviour as runs, whatever they are made of: nodes, or edges.

    Args:
        batch: Prompts with a metric.
        nodes: Everything that a circuit may hold.
        ablation: What replaces whatever a circuit does not hold.
    """

    model: Model
    batch: Batch
    nodes: tuple[N, ...]
    ablation: Ablation

    @abstractmethod
    def metric(self, circuits: Sequence[Sequence[N]]) -> Float[Tensor, "circuit batch"]:
        """The metric of each circuit."""

    @abstractmethod
    def flipped(self, circuit: Sequence[N], nodes: Sequence[N]) -> Float[Tensor, "node batch"]:
        """The metric of a circuit without each of its own nodes, and with each of the others."""

    def select(self: R, examples: slice | Int[Tensor, " n"]) -> R:
        """The same on a part of the prompts."""
        batch, ablation = self.batch.select(examples), self.ablation.select(examples)
        return replace(self, batch=batch, ablation=ablation, draw=None)

    @cached_property
    def reference(self) -> Reference:
        """The whole model, nothing ablated, and the empty circuit."""
        full = run_circuits(self.model, self.batch, [()], (), self.ablation)[0]
        return Reference(full, self.metric([()])[0])

    def faithfulness(self, circuits: Sequence[Sequence[N]]) -> Float[Tensor, " circuit"]:
        """Faithfulness of each circuit (docs/method.md §9).

        Raises:
            UnweaveError: When ablating everything leaves the metric where it was.
        """
        return self.reference.faithfulness(self.metric(circuits))


@dataclass(frozen=True, eq=False)
class Problem(Runs[Site]):
    """A behaviour to explain: prompts with a metric, nodes to choose from, and an ablation.

    Args:
        batch: Prompts.
        nodes: Every node that a circuit may hold.
        ablation: What an ablated node is replaced by.
        draw: Draws the same problem on prompts of another part ("discover", "check") or number;
            None where there are no others.
    """

    draw: "Callable[[str, int], Problem] | None" = None

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """Where nodes live, in the order of the forward pass."""
        return tuple(sorted({node.point for node in self.nodes}, key=lambda p: p.depth))

    @cached_property
    def reference(self) -> Reference:
        """The whole model, nothing ablated, and the empty circuit."""
        return Reference(self._circuits([()], ())[0], self.metric([()])[0])

    def metric(self, circuits: Sequence[Sequence[Site]]) -> Float[Tensor, "circuit batch"]:
        """The metric of each circuit, all else ablated at the nodes' points.

        Where nodes name positions, every position that no node of a circuit names is ablated.
        """
        return self._circuits(circuits, self.points)

    def flipped(
        self, circuit: Sequence[Site], nodes: Sequence[Site]
    ) -> Float[Tensor, "node batch"]:
        """The metric of a circuit without each of its own nodes, and with each of the others."""

        def run(rows: slice, columns: slice) -> Float[Tensor, "node batch"]:
            part = self if columns == slice(None) else self.select(columns)
            return run_flips(
                part.model, part.batch, circuit, nodes[rows], self.points, part.ablation
            )

        return self._shared([circuit, *((node,) for node in nodes)], len(nodes), run)

    def by_prompts(
        self, rows: int, run: "Callable[[Problem], Float[Tensor, 'row part']]"
    ) -> Float[Tensor, "row batch"]:
        """What `run` computes for each prompt; under torchrun each process takes some prompts."""
        mine, total = ranks(), len(self.batch)
        if mine.count == 1:
            return run(self)
        agree([f"{rows} rows"])
        network = self.model.network
        table = torch.zeros(rows, total, dtype=network.dtype, device=network.device)
        if (share := mine.share(1, total)) is not None:
            with alone():
                table[:, share[1]] = run(self.select(share[1]))
        return summed(table)

    def _circuits(
        self, circuits: Sequence[Sequence[Site]], points: Sequence[Point]
    ) -> Float[Tensor, "circuit batch"]:
        def run(rows: slice, columns: slice) -> Float[Tensor, "circuit batch"]:
            part = self if columns == slice(None) else self.select(columns)
            return run_circuits(part.model, part.batch, circuits[rows], points, part.ablation)

        return self._shared(circuits, len(circuits), run)

    def _shared(
        self,
        circuits: Sequence[Sequence[Site]],
        rows: int,
        run: Callable[[slice, slice], Float[Tensor, "row batch"]],
    ) -> Float[Tensor, "row batch"]:
        """Under torchrun each process runs its share of the circuits and prompts."""
        # In one process nobody has to agree on what is run.
        spread = ranks().count > 1
        names = [" ".join(sorted(map(str, one))) for one in circuits] if spread else ()
        like = torch.empty(0, dtype=self.model.network.dtype, device=self.model.network.device)
        return sharded(rows, len(self.batch), run, like, names)
