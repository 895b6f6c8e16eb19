"""`attribute`: contextual decomposition of words and phrases.

A word's relevant part β is its embedding (or the hidden states at its positions, at a deeper
level), all of its word pieces together. β is pushed to the output, and its score is its part of
logit[target] − logit[other] (docs/method.md §9). Steps:

1. Tokens are grouped to words, and the target of each text is found.
2. Texts of like length share one sweep: source k is word k of each text.
3. A second sweep goes the other way: what the ablated text gains when the word comes in. A word's
   score is the mean of both, since one that others make up for is not missed and counts alone,
   and one that needs others is missed and does nothing alone.
4. Phrases are sources as well; two phrases interact by the excess of their joint score.

The metric is the sum of four numbers: the metric with every word ablated, the words' scores, what
words do in combination (all words together − their sum), and a remainder that the rules assign to
no word (0 for the rule set `removal`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unweave.attribution.render import html, terminal
from unweave.attribution.sweep import WordAblation, WordSweep
from unweave.attribution.target import MetricTarget, find_targets
from unweave.attribution.texts import EncodedText, Word, read_text
from unweave.behaviours.prompt import Span
from unweave.decomposition.api import Precision
from unweave.decomposition.ruleset import RuleSet
from unweave.display.frames import frame
from unweave.errors import UnweaveError
from unweave.model.model import Model

if TYPE_CHECKING:
    from pandas import DataFrame
    from plotly.graph_objects import Figure

# Of eleven rule sets and two ablations, the one with the largest insertion area, and the only one
# that passes integrated gradients at insertion as well as deletion; `frozen` is better at deletion
# (benchmarks/attribution.py --rules, on other questions than those reported). The paper's rules for
# tokens are "paper, attention=frozen, clamp=everywhere" with the ablation "zero".
RULES = "removal, attention=frozen"
# Against a corrupted text few words differ: exact runs cost no more, and leave no remainder.
COUNTERFACTUAL_RULES = "removal"
ABLATION: WordAblation = "padding"
_TEXTS = 16  # texts in one sweep

Phrase = str | Span


@dataclass(frozen=True, eq=False)
class Attribution:
    """The parts of a text in what the model says.

    Args:
        words: Every word and special token, in order.
        scores: Each word's part of the target's logit difference.
        phrases: The phrases that were asked for, with their scores.
        interactions: Pairs of phrases with joint score − sum of the two scores.
        whole: The score of all words together. The paper's rules, which share biases out, give the
            metric itself with the ablation "zero"; other rules leave a remainder.
        ablated: The metric of a plain run with every word ablated; 0 for the ablation "zero".
        rules: The rule set.
        ablation: What words are compared with.
        level: 0 for the embedding, L for the residual stream that enters layer L.
    """

    text: str
    words: tuple[Word, ...]
    scores: tuple[float, ...]
    phrases: tuple[tuple[Word, float], ...]
    interactions: tuple[tuple[Word, Word, float], ...]
    target: MetricTarget
    whole: float
    ablated: float
    rules: str
    ablation: WordAblation
    level: int

    @property
    def summed(self) -> float:
        """The sum of the words' scores."""
        return sum(self.scores)

    @property
    def combined(self) -> float:
        """What words do in combination: all words together − the sum of their scores."""
        return self.whole - self.summed

    @property
    def remainder(self) -> float:
        """What the rules assign to no word: metric − metric without words − all words together."""
        return self.target.metric - self.ablated - self.whole

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
            "adds_up": {
                "ablated": self.ablated,
                "words": self.summed,
                "combined": self.combined,
                "remainder": self.remainder,
            },
            "ablation": self.ablation,
            "rules": self.rules,
            "level": self.level,
        }

    def __repr__(self) -> str:
        top = sorted(zip(self.scores, self.words, strict=True), key=lambda p: -abs(p[0]))[:4]
        listed = ", ".join(f"{word.text} {score:+.3g}" for score, word in top)
        return f"Attribution({self.target.name} = {self.target.metric:.3g}; {listed})"

    def __rich__(self):
        return terminal(self)

    def to_frame(self) -> "DataFrame":
        """A data frame with a row for each word (needs pandas)."""
        texts = [word.text for word in self.words]
        special = [word.fixed for word in self.words]
        return frame({"word": texts, "score": self.scores, "special": special})

    def plot(self) -> "Figure":
        """A plotly figure with a bar for each word."""
        from unweave.display.figures import bars

        return bars([word.text for word in self.words], self.scores, self.target.name)

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
    rules: str | RuleSet | None = None,
    ablation: WordAblation | None = None,
    corrupted: str | Sequence[str] | None = None,
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
        rules: A rule set or its name; `RULES` by default, exact runs ("removal") where a
            corrupted text is given.
        ablation: What a word is compared with: no vector at all ("zero"), the vector of padding at
            its position ("padding", the default), so that position and special tokens count for
            nothing, or its counterpart in the corrupted text ("counterfactual", the default where
            one is given): words that both texts share then score 0 at level 0.
        corrupted: A corrupted text for each text, as prompts of a task have one.
        decoder: An encoder-decoder's decoder tokens so far; its start token unless given.
        truncate: Whether a text longer than the model's limit is cut instead of refused.

    Raises:
        UnweaveError: For an empty or too long text, an unknown class, or a phrase not there.
    """
    texts = [text] if isinstance(text, str) else list(text)
    if not texts:
        raise UnweaveError("no text given: expected a string or a list of strings")
    ablation, others = _ablation(ablation, corrupted, len(texts))
    rules = rules or (COUNTERFACTUAL_RULES if others else RULES)
    encoded = [read_text(model, one, truncate) for one in texts]
    found: dict[int, Attribution] = {}
    for chosen in _of_like_length([len(one.ids) for one in encoded]):
        some = [encoded[i] for i in chosen]
        targets = find_targets(model, some, target, against, decoder)
        asked = [_Asked(one, phrases, interactions) for one in some]
        pairs = [others[i] for i in chosen] if others else ()
        sweep = WordSweep(model, some, targets, level, rules, ablation, pairs, decoder, precision)
        scores, metrics = sweep.scores([one.sources for one in asked])
        for row, i in enumerate(chosen):
            found[i] = asked[row].result(sweep, targets[row], scores[row], metrics[row])
    return found[0] if isinstance(text, str) else [found[i] for i in range(len(texts))]


def _ablation(
    ablation: WordAblation | None, corrupted: str | Sequence[str] | None, texts: int
) -> tuple[WordAblation, list[str]]:
    """The ablation that options mean, and the corrupted texts that it needs."""
    others = [corrupted] if isinstance(corrupted, str) else list(corrupted or ())
    chosen = ablation or ("counterfactual" if others else ABLATION)
    if (chosen == "counterfactual") != bool(others):
        raise UnweaveError(
            f"the ablation {chosen!r} with {len(others)} corrupted texts: give a corrupted text "
            "for each text (--corrupted) and no other ablation, or neither"
        )
    if not all(other.strip() for other in others):
        raise UnweaveError("the corrupted text is empty: give at least one word")
    if others and len(others) != texts:
        raise UnweaveError(f"{len(others)} corrupted texts for {texts} texts: give one for each")
    return chosen, others


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

    def result(
        self, sweep: WordSweep, target: MetricTarget, row: list[float], ablated: float
    ) -> Attribution:
        at = len(self.text.words)
        phrases = tuple(zip(self.phrases, row[at : at + len(self.phrases)], strict=True))
        at += len(self.phrases)
        triples = [row[at + 3 * i : at + 3 * i + 3] for i in range(len(self.pairs))]
        excess = tuple(
            (a, b, both - one - other)
            for (a, b), (one, other, both) in zip(self.pairs, triples, strict=True)
        )
        return Attribution(
            text=self.text.text,
            words=self.text.words,
            scores=tuple(row[: len(self.text.words)]),
            phrases=phrases,
            interactions=excess,
            target=target,
            whole=row[len(self.sources) - 1],
            ablated=ablated,
            rules=sweep.rules if isinstance(sweep.rules, str) else sweep.rules.name,
            ablation=sweep.ablation,
            level=sweep.level,
        )
