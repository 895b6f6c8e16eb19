"""`Batch`: prompts of a task as tensors, with what the metric reads and where."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from jaxtyping import Float, Int
from torch import Tensor

from unweave.metrics import Metric
from unweave.model.program import Inputs


@dataclass(frozen=True, eq=False)
class Readout:
    """A metric bound to its answers and to the position at which it reads the logits."""

    metric: Metric
    answers: Int[Tensor, "batch answer"]
    distractors: Int[Tensor, "batch other"]
    read: Int[Tensor, " batch"]

    def measure(self, logits: Float[Tensor, "*lead batch out"]) -> Float[Tensor, "*lead batch"]:
        """The metric of each example, from the logits at `read`."""
        return self.metric.measure(logits, self.answers, self.distractors)

    def gradient(self, logits: Float[Tensor, "batch out"]) -> Float[Tensor, "batch out"]:
        """∂metric/∂logits of each example."""
        return self.metric.gradient(logits, self.answers, self.distractors)

    def select(self, examples: slice | Int[Tensor, " n"]) -> "Readout":
        return replace(
            self,
            answers=self.answers[examples],
            distractors=self.distractors[examples],
            read=self.read[examples],
        )


@dataclass(frozen=True, eq=False)
class Batch:
    """Clean and corrupted prompts, row by row a pair.

    Args:
        readout: What the metric reads in the clean prompt.
        read_corrupted: Where it reads in the corrupted prompt (differs where lengths do).
        positions: Named positions in the clean prompt, one index an example.
        groups: Examples of one group align position by position (one template each).
        aligned: Whether clean and corrupted align position by position.
        templates: The template of each example; empty where prompts have none.
    """

    clean: Inputs
    corrupted: Inputs
    readout: Readout
    read_corrupted: Int[Tensor, " batch"]
    positions: Mapping[str, Int[Tensor, " batch"]]
    groups: Int[Tensor, " batch"]
    aligned: bool
    texts: tuple[str, ...]
    corrupted_texts: tuple[str, ...]
    templates: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.groups)

    def select(self, examples: slice | Int[Tensor, " n"]) -> "Batch":
        """A part of the batch."""
        index = range(len(self))[examples] if isinstance(examples, slice) else examples.tolist()
        return replace(
            self,
            clean=self.clean.select(examples),
            corrupted=self.corrupted.select(examples),
            readout=self.readout.select(examples),
            read_corrupted=self.read_corrupted[examples],
            positions={name: where[examples] for name, where in self.positions.items()},
            groups=self.groups[examples],
            texts=tuple(self.texts[i] for i in index),
            corrupted_texts=tuple(self.corrupted_texts[i] for i in index),
            templates=tuple(self.templates[i] for i in index) if self.templates else (),
        )
