"""`attribute`: contextual decomposition of words and phrases.

A word's relevant part β is its embedding (or the hidden states at its positions, at a deeper
level), all of its word pieces together. β is pushed to the output, and its score is its part of
logit[target] − logit[other] (docs/method.md §9). Steps:

1. Tokens are grouped to words, and the target of each text is found.
2. Texts of like length share one sweep: source k is word k of each text.
3. Against padding, a second sweep goes the other way: what padding gains when the word comes in. A
   word's score is the mean of both, since one that others make up for is not missed and counts
   alone, and one that needs others is missed and does nothing alone.
4. Phrases are sources as well; two phrases interact by the excess of their joint score.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unweave.attribution.render import html, terminal
from unweave.attribution.target import Target, find_targets, reads_of
from unweave.attribution.texts import EncodedText, Span, Word, blank, read_text
from unweave.batch import Readout
from unweave.decomposition.api import Precision, relevance
from unweave.decomposition.ruleset import RuleSet
from unweave.errors import UnweaveError
from unweave.metrics import LOGIT_DIFFERENCE
from unweave.model.model import Model
from unweave.model.program import Inputs
from unweave.sites import Point, Site

# Of eleven rule sets and two ablations, the one with the largest insertion area, and the only one
# that passes integrated gradients at insertion as well as deletion; `frozen` is better at deletion
# (benchmarks/attribution.py --rules, on other questions than those reported). The paper's rules for
# tokens are "paper, attention=frozen, clamp=everywhere" with the ablation "zero".
RULES = "removal, attention=frozen"
ABLATION: "WordAblation" = "padding"
_TEXTS = 16  # texts in one sweep

Phrase = str | Span
WordAblation = Literal["zero", "padding"]


@dataclass(frozen=True, eq=False)
class Attribution:
    """The parts of a text in what the model says.

    Args:
        words: Every word and special token, in order.
        scores: Each word's part of the target's logit difference.
        phrases: The phrases that were asked for, with their scores.
        interactions: Pairs of phrases with joint score − sum of the two scores.
        whole: The score of all words together. The paper's rules, which share biases out, give the
            metric itself with the ablation "zero"; other rules leave a part to no word.
        rules: The rule set.
        level: 0 for the embedding, L for the residual stream that enters layer L.
    """

    text: str
    words: tuple[Word, ...]
    scores: tuple[float, ...]
    phrases: tuple[tuple[Word, float], ...]
    interactions: tuple[tuple[Word, Word, float], ...]
    target: Target
    whole: float
    rules: str
    level: int

    def ranking(self) -> list[Word]:
        """The words that a text is free to have, by score, the largest first."""
        pairs = zip(self.words, self.scores, strict=True)
        return [w for w, _ in sorted(pairs, key=lambda pair: -pair[1]) if not w.fixed]

    def to_json(self) -> dict:
        """Everything, for programs."""
        return {
            "text": self.text,
            "target": self.target.name,
            "predicted": self.target.predicted,
            "metric": self.target.metric,
            "words": [
                {"text": w.text, "tokens": list(w.tokens), "special": w.fixed, "score": s}
                for w, s in zip(self.words, self.scores, strict=True)
            ],
            "phrases": [{"text": w.text, "score": s} for w, s in self.phrases],
            "interactions": [
                {"phrases": [a.text, b.text], "excess": s} for a, b, s in self.interactions
            ],
            "whole": self.whole,
            "rules": self.rules,
            "level": self.level,
        }

    def __repr__(self) -> str:
        top = sorted(zip(self.scores, self.words, strict=True), key=lambda p: -abs(p[0]))[:4]
        listed = ", ".join(f"{word.text} {score:+.3g}" for score, word in top)
        return f"Attribution({self.target.name} = {self.target.metric:.3g}; {listed})"

    def __rich__(self):
        return terminal(self)

    def _repr_html_(self) -> str:
        return html(self)


def attribute(
    model: Model,
    text: str | Sequence[str],
    target: str | int | None = None,
    against: str | int | None = None,
    *,
    level: int = 0,
    phrases: Sequence[Phrase] = (),
    interactions: Sequence[tuple[Phrase, Phrase]] = (),
    rules: str | RuleSet = RULES,
    ablation: WordAblation = ABLATION,
    decoder: Sequence[int] | None = None,
    truncate: bool = False,
    precision: Precision | None = None,
) -> "Attribution | list[Attribution]":
    """Scores every word of a text, or of several, by contextual decomposition.

    Args:
        text: One text, or several (then a list comes back, the same as one at a time).
        target: A class or token, by name or number; the model's prediction unless given.
        against: What it is compared with; the runner-up unless given.
        level: 0 for the embedding, L for the residual stream that enters layer L.
        phrases: Pieces of the text that are scored as a whole, besides the words.
        interactions: Pairs of phrases whose interaction is wanted.
        rules: A rule set or its name.
        ablation: What a word is compared with: no vector at all ("zero"), or the vector of padding
            at its position ("padding"), so that position and special tokens count for nothing,
            and in both directions.
        decoder: An encoder-decoder's decoder tokens so far; its start token unless given.
        truncate: Whether a text longer than the model's limit is cut instead of refused.

    Raises:
        UnweaveError: For an empty or too long text, an unknown class, or a phrase not there.
    """
    texts = [text] if isinstance(text, str) else list(text)
    if not texts:
        raise UnweaveError("no text given: expected a string or a list of strings")
    encoded = [read_text(model, one, truncate) for one in texts]
    found: list[Attribution | None] = [None] * len(texts)
    for chosen in _of_like_length([len(one.ids) for one in encoded]):
        some = [encoded[i] for i in chosen]
        targets = find_targets(model, some, target, against, decoder)
        asked = [_Asked(one, phrases, interactions) for one in some]
        sweep = _Sweep(model, some, targets, level, rules, ablation, decoder, precision)
        scores = sweep.scores([one.sources for one in asked])
        for i, one, goal, row in zip(chosen, asked, targets, scores, strict=True):
            name = rules if isinstance(rules, str) else rules.name
            found[i] = replace(one.result(goal, row), rules=name, level=level)
    done = [one for one in found if one is not None]
    return done[0] if isinstance(text, str) else done


def _of_like_length(lengths: Sequence[int]) -> list[list[int]]:
    """Texts that share a sweep: padding and words that a text does not have cost time."""
    groups: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        fits = groups and lengths[i] <= 1.5 * lengths[groups[-1][0]] + 4
        if fits and len(groups[-1]) < _TEXTS:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


class _Asked:
    """The sources of one text, and how their scores are read back."""

    def __init__(
        self,
        text: EncodedText,
        phrases: Sequence[Phrase],
        interactions: Sequence[tuple[Phrase, Phrase]],
    ) -> None:
        self.text = text
        self.phrases = [text.phrase(p) for p in phrases]
        self.pairs = [(text.phrase(a), text.phrase(b)) for a, b in interactions]
        for a, b in self.pairs:
            if set(a.tokens) & set(b.tokens):
                raise UnweaveError(f"{a.text!r} and {b.text!r} overlap: choose phrases that do not")
        joint = [[a, b, Word("", a.tokens + b.tokens)] for a, b in self.pairs]
        whole = Word("", tuple(range(len(text.ids))))
        words = [*text.words, *self.phrases, *(w for three in joint for w in three), whole]
        self.sources = [word.tokens for word in words]

    def result(self, target: Target, row: list[float]) -> Attribution:
        at = len(self.text.words)
        phrases = tuple(zip(self.phrases, row[at : at + len(self.phrases)], strict=True))
        at += len(self.phrases)
        triples = [row[at + 3 * i : at + 3 * i + 3] for i in range(len(self.pairs))]
        excess = tuple(
            (a, b, both - one - other)
            for (a, b), (one, other, both) in zip(self.pairs, triples, strict=True)
        )
        words = self.text.words
        scores = tuple(row[: len(words)])
        return Attribution(
            self.text.text,
            words,
            scores,
            phrases,
            excess,
            target,
            row[len(self.sources) - 1],
            "",
            0,
        )


@dataclass(frozen=True, eq=False)
class _Sweep:
    """Texts of like length in one sweep of the engine."""

    model: Model
    texts: Sequence[EncodedText]
    targets: Sequence[Target]
    level: int
    rules: str | RuleSet
    ablation: WordAblation
    decoder: Sequence[int] | None
    precision: Precision | None

    def scores(self, tokens: Sequence[Sequence[tuple[int, ...]]]) -> list[list[float]]:
        """For each text the score of each of its sets of tokens.

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
        else:
            padding = self._inputs([blank(self.model, one) for one in self.texts])
            down = self._examples(text, padding, sources, positions)
            up = self._examples(padding, text, sources, positions)
            found = (down - up) / 2
        return [row[: len(t)] for row, t in zip(found.T.tolist(), tokens, strict=True)]

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
