"""Attribution beside its peers, in one call: integrated gradients and occlusion.

All explain the same logit difference of the same words; each is timed, and put to the deletion and
insertion test. Integrated gradients (Sundararajan et al., 2017) are captum's, over our own forward
pass, from padding (special tokens stay) to the text. Occlusion leaves out one word at a time.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.ablation import ZERO, activations
from unweave.attribution.attribute import ABLATION, RULES, attribute
from unweave.attribution.deletion import Areas, areas, subset_metrics
from unweave.attribution.render import coloured, largest
from unweave.attribution.sweep import WordAblation
from unweave.attribution.target import MetricTarget, find_targets, reads_of
from unweave.attribution.texts import EncodedText, Word, blank, read_text
from unweave.decomposition.ruleset import RuleSet
from unweave.errors import UnweaveError
from unweave.model.model import Model
from unweave.model.program import Inputs, run
from unweave.patching.circuits import Patch
from unweave.sites import Point

STEPS = 50  # captum's default
SHOWN = 3  # texts whose words are printed; JSON has all
_ROWS = 64

WordScores = tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Peer:
    """One method on all texts.

    Args:
        seconds: Per text.
        areas: The deletion and insertion areas, mean over texts.
        scores: Per text, a score for each of its words.
    """

    name: str
    seconds: float
    areas: Areas
    scores: tuple[WordScores, ...]


@dataclass(frozen=True, eq=False)
class MethodWords:
    """Methods side by side on the same texts.

    Args:
        targets: What was explained, one a text.
        missing: Why a method is not there.
    """

    peers: tuple[Peer, ...]
    texts: tuple[str, ...]
    targets: tuple[MetricTarget, ...]
    words: tuple[tuple[Word, ...], ...]
    missing: tuple[str, ...] = field(default=())

    def __getitem__(self, name: str) -> Peer:
        return next(peer for peer in self.peers if peer.name == name)

    def __rich__(self):
        from rich.console import Group
        from rich.text import Text

        words = [self._words_table(i) for i in range(min(SHOWN, len(self.texts)))]
        left = len(self.texts) - len(words)
        more = [Text(f"words of {left} more texts: --json")] if left else []
        return Group(*words, *more, self._areas_table())

    def _words_table(self, number: int):
        """Every method's score of every word of one text."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        target = self.targets[number]
        title = Text(f"{target.name}: {target.metric:+.3f}   (predicted: {target.predicted})")
        names = [peer.name for peer in self.peers]
        table = Table("word", *names, box=box.SIMPLE_HEAD, title=title, title_justify="left")
        columns = [peer.scores[number] for peer in self.peers]
        most = [largest(scores) for scores in columns]
        for word, *row in zip(self.words[number], *columns, strict=True):
            cells = zip(row, most, strict=True)
            table.add_row(Text(word.text), *(coloured(f"{s:+.3f}", s, m) for s, m in cells))
        summed = (f"{sum(scores):+.3f}" for scores in columns)
        table.add_section()
        table.add_row(Text("sum"), *summed)
        return table

    def _areas_table(self):
        from rich.table import Table
        from rich.text import Text

        table = Table("method", "deletion ↓", "insertion ↑", "gap ↑", "ms a text", "time ratio")
        for peer in self.peers:
            table.add_row(
                peer.name,
                f"{peer.areas.deletion:+.3f}",
                f"{peer.areas.insertion:+.3f}",
                f"{peer.areas.gap:+.3f}",
                f"{1000 * peer.seconds:.1f}",
                f"{peer.seconds / self.peers[0].seconds:.1f}×",
            )
        count = f"mean over {len(self.texts)} texts" if len(self.texts) > 1 else "one text"
        caption = (count, *self.missing)
        table.caption = Text("\n".join(caption))
        return table

    def to_json(self) -> dict:
        """Everything, for programs."""
        return {
            "methods": [
                {
                    "name": peer.name,
                    "seconds": peer.seconds,
                    "deletion": peer.areas.deletion,
                    "insertion": peer.areas.insertion,
                    "scores": peer.scores,
                }
                for peer in self.peers
            ],
            "texts": self.texts,
            "targets": [
                {"name": t.name, "predicted": t.predicted, "metric": t.metric} for t in self.targets
            ],
            "words": [[word.text for word in words] for words in self.words],
            "missing": self.missing,
        }


def compare_attributions(
    model: Model,
    texts: str | Sequence[str],
    target: str | int | None = None,
    against: str | int | None = None,
    *,
    rules: str | RuleSet = RULES,
    ablation: WordAblation = ABLATION,
    steps: int = STEPS,
    truncate: bool = False,
) -> MethodWords:
    """Attributes texts by every available method and tests each.

    Args:
        texts: One or several; each method takes them one at a time, so that times compare.
        target, against: As in `attribute`.
        steps: Of integrated gradients.
    """
    given = [texts] if isinstance(texts, str) else list(texts)
    if not given:
        raise UnweaveError("no text given: expected a string or a list of strings")
    encoded = [read_text(model, text, truncate) for text in given]
    targets = [find_targets(model, [text], target, against)[0] for text in encoded]

    def ours(text: EncodedText, goal: MetricTarget) -> WordScores:
        found = attribute(
            model,
            text.text,
            goal.answer,
            goal.other,
            rules=rules,
            ablation=ablation,
            truncate=truncate,
        )
        assert not isinstance(found, list)
        return found.scores

    ways: dict[str, Callable[[EncodedText, MetricTarget], WordScores]] = {
        "unweave": ours,
        "occlusion": lambda text, goal: occlusion(model, text, goal),
    }
    missing = ()
    try:
        import captum.attr  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        missing = ("integrated gradients need captum: pip install 'unweave[peers]'",)
    else:
        ways["integrated gradients"] = lambda text, goal: integrated_gradients(
            model, text, goal, steps
        )
    peers = [_measured(model, name, way, encoded, targets) for name, way in ways.items()]
    words = tuple(text.words for text in encoded)
    return MethodWords(tuple(peers), tuple(given), tuple(targets), words, missing)


def _measured(
    model: Model,
    name: str,
    way: Callable[[EncodedText, MetricTarget], WordScores],
    texts: Sequence[EncodedText],
    targets: Sequence[MetricTarget],
) -> Peer:
    way(texts[0], targets[0])  # the first call of anything is slower
    began = time.perf_counter()
    scores = [way(text, goal) for text, goal in zip(texts, targets, strict=True)]
    seconds = (time.perf_counter() - began) / len(texts)
    found = [
        areas(model, text, goal, ranked(text, row))
        for text, goal, row in zip(texts, targets, scores, strict=True)
    ]
    mean = torch.tensor(found).double().mean(0).tolist()
    return Peer(name, seconds, Areas(*mean), tuple(scores))


def ranked(text: EncodedText, scores: Sequence[float]) -> list[Word]:
    """The words that may leave a text, the highest score first."""
    pairs = zip(scores, text.words, strict=True)
    return [word for _, word in sorted(pairs, key=lambda pair: -pair[0]) if not word.fixed]


def occlusion(model: Model, text: EncodedText, target: MetricTarget) -> WordScores:
    """What the logit difference loses when a word is left out, exactly; 0 for special tokens."""
    free = [word for word in text.words if not word.fixed]
    everything = tuple(range(len(text.ids)))
    kept = [everything, *(tuple(i for i in everything if i not in w.tokens) for w in free)]
    values = subset_metrics(model, text, target, kept)
    lost = dict(zip(map(id, free), (values[0] - values[1:]).tolist(), strict=True))
    return tuple(lost.get(id(word), 0.0) for word in text.words)


@dataclass(eq=False)
class _From(Patch):
    """A run from given embeddings."""

    embedding: Tensor | None = None
    point: Point = field(default_factory=lambda: Point("embed"))

    def at(self, x: Tensor, point: Point) -> Tensor:
        return self.embedding if point == self.point and self.embedding is not None else x


def integrated_gradients(
    model: Model, text: EncodedText, target: MetricTarget, steps: int = STEPS
) -> WordScores:
    """Captum's integrated gradients of the logit difference, summed over each word's tokens.

    The path begins at the same text with every word replaced by padding.
    """
    from captum.attr import IntegratedGradients  # pyright: ignore[reportMissingImports]

    point = Point("embed", 0, "enc" if model.network.encoder is not None else "")
    inputs, read = model.rows([text.ids]), reads_of(model, [text], None)
    whole, start = (
        activations(model, some, [point])[point]
        for some in (inputs, model.rows([blank(model, text)]))
    )

    def metric(embedding: Float[Tensor, "row position d_model"]) -> Float[Tensor, " row"]:
        rows = torch.zeros(len(embedding), dtype=torch.long, device=embedding.device)
        many = Inputs(inputs.mask, inputs.tokens, decoder=inputs.decoder).select(rows)
        ops = _From({}, ZERO, len(rows), read[rows][:, None], embedding=embedding, point=point)
        out = run(model.network, many, ops)[:, 0]
        return out[:, target.answer] - out[:, target.other]

    method = IntegratedGradients(metric)
    with torch.enable_grad():
        found = method.attribute(whole, start, n_steps=steps, internal_batch_size=_ROWS)
    by_token = found[0].sum(-1).tolist()
    return tuple(sum(by_token[i] for i in word.tokens) for word in text.words)
