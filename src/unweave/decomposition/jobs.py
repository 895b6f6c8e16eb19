"""From what a user gives to a job: precision, memory, and the ablation at every point it needs."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from jaxtyping import Int
from torch import Tensor

from unweave.ablation import ZERO, Ablation, counterfactual
from unweave.asked import asked_memory
from unweave.decomposition.engine import Job
from unweave.decomposition.memory import (
    footprint,
    memory_budget,
    plain_examples,
    point_bytes,
    stored_bytes,
)
from unweave.decomposition.precision import Precision, uses_tf32
from unweave.decomposition.ruleset import RuleSet
from unweave.decomposition.sources import Source
from unweave.errors import UnweaveError
from unweave.graph import LOGITS
from unweave.model.model import Model
from unweave.model.program import Inputs
from unweave.model.weights import Network
from unweave.sites import Point

Text = str | Sequence[str] | Int[Tensor, "batch position"] | Inputs


@dataclass(frozen=True, eq=False)
class Setting:
    """What a job is made in.

    Args:
        network: The model's, its head replaced by what the targets read.
    """

    model: Model
    network: Network
    inputs: Inputs
    positions: Mapping[str, Int[Tensor, " batch"]]
    rules: RuleSet
    precision: Precision | None
    memory: str | int | None

    def job(
        self,
        sources: Sequence[Source],
        ablation: "str | Ablation | Text",
        points: frozenset[Point],
        reads: Int[Tensor, "batch n"] | None,
        last: Point,
        results: Callable[[int], int],
        each: int = 0,
    ) -> Job:
        """A job whose ablation holds every point of a source or of an inner target.

        Args:
            points: Of the inner targets.
            results: Bytes of its results, for as many rows as it has.
            each: Bytes that are held besides for each example of a part.

        Raises:
            UnweaveError: When the budget is too small, before anything is run.
        """
        read = 0 if last != LOGITS else None if reads is None else reads.shape[1]
        budget = self._budget()
        job = Job(
            network=self.network,
            inputs=self.inputs,
            sources=sources,
            positions=self.positions,
            ablation=ZERO,
            rules=self.rules,
            reads=reads,
            last=last,
            footprint=footprint(self.network, self.inputs, 0, read),
            budget=budget,
            tf32=uses_tf32(self.model, self.precision),
        )
        needed = {site.point for source in sources for site in source.sites} | points
        needed -= {LOGITS}
        # Computed for this call, unlike one that is given or zero.
        computed = not isinstance(ablation, Ablation | str)
        held = point_bytes(self.network, self.inputs, needed) if computed else 0
        taken = footprint(self.network, self.inputs, results(job.rows) + held, read)
        taken = replace(taken, example=taken.example + each)
        taken.check(budget)
        found = _ablation(self.model, ablation, needed, self.inputs, budget)
        return replace(job, ablation=found, footprint=taken)

    def _budget(self) -> int:
        """Bytes of the work; a command's --memory, and that of a model whose weights can be
        elsewhere, is for the weights too."""
        memory = self.memory if self.memory is not None else asked_memory()
        budget = memory_budget(memory, self.network.device)
        together = self.memory is None or self.network.window is not None
        if memory is None or not together:
            return budget
        budget -= stored_bytes(self.network)
        if budget <= 0:
            raise UnweaveError(
                f"memory {memory} is less than the weights that are stored on "
                f"{self.network.device} take: give more, or place weights elsewhere (device_map)"
            )
        return budget


def _ablation(
    model: Model,
    given: "str | Ablation | Text",
    needed: Collection[Point],
    inputs: Inputs,
    budget: int,
) -> Ablation:
    if isinstance(given, Ablation):
        # Recorded in another precision than the sweep's.
        dtype = model.network.dtype
        return replace(given, values={p: v.to(dtype) for p, v in given.values.items()})
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
            f"{tuple(inputs.mask.shape)}: they must align token by token, "
            "choose texts of one length"
        )
    return counterfactual(model, other, needed, plain_examples(model.network, inputs, budget))
