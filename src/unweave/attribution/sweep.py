"""Scores of sets of tokens: texts of like length in one sweep of the engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unweave.attribution.target import MetricTarget, read_logits, reads_of
from unweave.attribution.texts import EncodedText, blank, counterfactual_row
from unweave.batch import Readout
from unweave.decomposition.api import Precision, relevance
from unweave.decomposition.ruleset import RuleSet
from unweave.metrics import LOGIT_DIFFERENCE
from unweave.model.model import Model
from unweave.model.program import Inputs
from unweave.sites import Point, Site

WordAblation = Literal["padding", "zero", "counterfactual"]


@dataclass(frozen=True, eq=False)
class WordSweep:
    """Texts of like length with their targets.

    Args:
        corrupted: The corrupted text of each text, for the ablation "counterfactual".
    """

    model: Model
    texts: Sequence[EncodedText]
    targets: Sequence[MetricTarget]
    level: int
    rules: str | RuleSet
    ablation: WordAblation
    corrupted: Sequence[str]
    decoder: Sequence[int] | None
    precision: Precision | None

    def scores(
        self, tokens: Sequence[Sequence[tuple[int, ...]]]
    ) -> tuple[list[list[float]], list[float]]:
        """For each text the score of each of its sets of tokens, and the metric without words.

        Source k is the k-th set of every text, its positions named `k.j`. A text with a smaller
        set names its last position again, which changes nothing; one with fewer sets gets a score
        too many, which is dropped.
        """
        stack = "enc" if self.model.network.encoder is not None else ""
        point = Point("resid", self.level, stack) if self.level else Point("embed", 0, stack)
        self.model.check_site(Site(point))
        sources, positions = [], {}
        for k in range(max(map(len, tokens))):
            sets = [row[k] if k < len(row) else row[-1][:1] for row in tokens]
            names = [f"{k}.{j}" for j in range(max(map(len, sets)))]
            sources.append([Site(point, None, name) for name in names])
            for j, name in enumerate(names):
                positions[name] = self._vector([s[min(j, len(s) - 1)] for s in sets])
        text = self._inputs([one.ids for one in self.texts])
        if self.ablation == "zero":
            found = self._examples(text, "zero", sources, positions)
            metrics = [0.0] * len(self.texts)
        else:
            ablated = self._inputs(self._ablated_rows())
            down = self._examples(text, ablated, sources, positions)
            up = self._examples(ablated, text, sources, positions)
            found = (down - up) / 2
            metrics = self._metrics(ablated)
        scores = [row[: len(t)] for row, t in zip(found.T.tolist(), tokens, strict=True)]
        return scores, metrics

    def _ablated_rows(self) -> list[list[int]]:
        """Each text with every word replaced."""
        if self.ablation == "padding":
            return [blank(self.model, one) for one in self.texts]
        return [
            counterfactual_row(self.model, one, other)
            for one, other in zip(self.texts, self.corrupted, strict=True)
        ]

    def _metrics(self, inputs: Inputs) -> list[float]:
        readout = self._readout()
        return readout.measure(read_logits(self.model, inputs, readout.read)).tolist()

    def _examples(
        self,
        inputs: Inputs,
        ablation: str | Inputs,
        sources: Sequence[Sequence[Site]],
        positions: Mapping[str, Int[Tensor, " batch"]],
    ) -> Float[Tensor, "source batch"]:
        """Each text's scores, its words taken from `inputs` to their ablation."""
        return relevance(
            self.model,
            inputs,
            sources,
            self._readout(),
            self.rules,
            ablation,
            pairs=(),
            positions=positions,
            precision=self.precision,
        ).examples

    def _inputs(self, rows: Sequence[Sequence[int]]) -> Inputs:
        return self.model.rows(rows, self.decoder)

    def _readout(self) -> Readout:
        return Readout(
            LOGIT_DIFFERENCE,
            self._vector([t.answer for t in self.targets])[:, None],
            self._vector([t.other for t in self.targets])[:, None],
            reads_of(self.model, self.texts, self.decoder),
        )

    def _vector(self, values: Sequence[int]) -> Int[Tensor, " batch"]:
        return torch.tensor(values, device=self.model.network.device)
