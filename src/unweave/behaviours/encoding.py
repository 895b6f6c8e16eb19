"""From prompts to a `Batch`: tokens, the indices of named positions, answer ids, groups."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import torch
from jaxtyping import Int
from torch import Tensor

from unweave.batch import Batch, Readout
from unweave.behaviours.prompt import OTHERS, Answer, Prompt, Span, short
from unweave.behaviours.words import Words
from unweave.errors import UnweaveError
from unweave.metrics import Metric
from unweave.model.model import Model
from unweave.model.weights import Linear
from unweave.registry import nearest


@dataclass(frozen=True, eq=False)
class EncodedPrompt:
    """One prompt for one tokenizer."""

    clean: list[int]
    corrupted: list[int]
    answers: list[int]
    distractors: list[int]
    read: int
    read_corrupted: int
    positions: dict[str, int]


def encode(
    words: Words, prompt: Prompt, relative: Sequence[str] = (), first_token: bool = False
) -> EncodedPrompt:
    """Encodes one prompt.

    A named position is the last token that overlaps its span; a relative one such as "S1+1" is an
    offset from it; "end" is where the metric reads.

    Raises:
        UnweaveError: When an answer is not a single token, a text has no tokens or too many, or a
            position has none.
    """
    clean, spans = words.model.encode(prompt.clean)
    corrupted, _ = words.model.encode(prompt.corrupted)
    for noun, text, ids in (
        ("clean", prompt.clean, clean),
        ("corrupted", prompt.corrupted, corrupted),
    ):
        if not ids:
            raise UnweaveError(
                f"the {noun} text {short(text)} has no tokens: give at least one word"
            )
        words.model.check_length(len(ids), f"the {noun} text {text[:60]!r}")
    if prompt.distractors == (OTHERS,) and not words.model.network.head.first:
        raise UnweaveError(
            f"lines with text and label are for a classifier, {words.model.name} is none: choose "
            "one, or write clean, corrupted, answer and distractor"
        )
    read = _read(words.model, clean)
    positions = {name: _last_token(name, span, spans) for name, span in prompt.spans.items()}
    for name in relative:
        anchor, _, offset = name.rpartition("+")
        index = positions[anchor] + int(offset)
        if index >= len(clean):
            raise UnweaveError(
                f"position {name!r} is behind the end of {short(prompt.clean)}: write longer "
                "prompts, or drop the position"
            )
        positions[name] = index
    answers = [_id(words, prompt, text, "answer", first_token) for text in prompt.answers]
    if prompt.distractors == (OTHERS,):
        others = [i for i in range(_outputs(words.model)) if i not in answers]
    else:
        wrong = prompt.distractors
        others = [_id(words, prompt, text, "distractor", first_token) for text in wrong]
    if both := set(answers) & set(others):
        token = words.model.decode(both.pop())
        raise UnweaveError(
            f"an answer and a distractor both begin with the token {token!r}: choose words that do "
            "not"
        )
    read_corrupted = _read(words.model, corrupted)
    if words.model.family != "encoder-decoder":  # whose answer stands in another text
        positions["end"] = read
    return EncodedPrompt(clean, corrupted, answers, others, read, read_corrupted, positions)


def to_batch(
    words: Words,
    prompts: Sequence[Prompt],
    metric: Metric,
    relative: Sequence[str] = (),
    first_token: bool = False,
) -> Batch:
    """Encodes prompts as one batch on the model's device.

    Only positions that every prompt names are kept. Groups are numbered by template and lengths
    alone, so that the same group has the same number in every batch of a task.
    """
    device = words.model.network.device
    rows = [encode(words, prompt, relative, first_token) for prompt in prompts]
    names = [name for name in rows[0].positions if all(name in row.positions for row in rows)]

    def vector(values: Sequence[int]) -> Int[Tensor, " batch"]:
        return torch.tensor(values, device=device)

    return Batch(
        clean=words.model.rows([row.clean for row in rows]),
        corrupted=words.model.rows([row.corrupted for row in rows]),
        readout=Readout(
            metric,
            _ragged([row.answers for row in rows], device),
            _ragged([row.distractors for row in rows], device),
            vector([row.read for row in rows]),
        ),
        read_corrupted=vector([row.read_corrupted for row in rows]),
        positions={name: vector([row.positions[name] for row in rows]) for name in names},
        groups=vector(
            [
                group_of(prompt.template, row.clean, row.corrupted)
                for prompt, row in zip(prompts, rows, strict=True)
            ]
        ),
        aligned=all(len(row.clean) == len(row.corrupted) for row in rows),
        texts=tuple(prompt.clean for prompt in prompts),
        corrupted_texts=tuple(prompt.corrupted for prompt in prompts),
        templates=tuple(prompt.template for prompt in prompts),
    )


def group_of(template: str, clean: Sequence[int], corrupted: Sequence[int]) -> int:
    """A number for a template and the lengths of a prompt's tokens, the same in every process."""
    key = f"{template} {len(clean)} {len(corrupted)}"
    return int.from_bytes(blake2b(key.encode(), digest_size=7).digest())


def _read(model: Model, ids: list[int]) -> int:
    """Where the answer is read: the end, a classifier's first token, a masked model's mask.

    An encoder-decoder reads the text in its encoder, and answers after its decoder's start token.
    """
    if model.family == "decoder":
        return len(ids) - 1
    if model.family == "encoder-decoder":
        return 0
    if model.family == "encoder" and model.network.head.first:
        return 0
    mask = getattr(model.tokenizer, "mask_token_id", None)
    if model.family != "encoder" or mask is None:
        raise UnweaveError(
            f"{model.name} is of the family {model.family}: a task needs text, choose a language "
            "model or text classifier"
        )
    if mask not in ids:
        raise UnweaveError(
            f"{model.name} is a masked language model: put {model.decode(mask)} into the prompt "
            "where the answer belongs, or choose a decoder"
        )
    return ids.index(mask)


def _last_token(name: str, span: Span, spans: list[tuple[int, int]]) -> int:
    inside = [i for i, (start, end) in enumerate(spans) if start < span[1] and span[0] < end]
    if not inside:
        raise UnweaveError(f"position {name!r} covers no token: give the characters of a word")
    return inside[-1]


def _id(words: Words, prompt: Prompt, text: Answer, noun: str, first_token: bool) -> int:
    labels, outputs = words.model.network.head.labels, _outputs(words.model)
    if isinstance(text, int):
        if not 0 <= text < outputs:
            raise UnweaveError(
                f"{noun} {short(text)}: {words.model.name} has outputs 0–{outputs - 1}"
            )
        return text
    if labels:
        if text not in labels:
            raise UnweaveError(f"{noun} {short(text)} is not a class: {nearest(text[:80], labels)}")
        return labels.index(text)
    # A masked answer is alone: the tokens around it are not its context.
    context = prompt.clean if words.model.family == "decoder" else ""
    if context[-1:] == " " and (text[:1] == " " or words.merges(context, text)):
        raise UnweaveError(
            f"the clean text {short(context[-40:])} ends with a space, which belongs to the next "
            f"word: drop it there and write the {noun} as {short(' ' + text.lstrip())}"
        )
    remedy = (
        f"choose a single-token {noun}, or let its first token stand for it with "
        "first_token=True (--first-token)"
    )
    return words.token(context, text, remedy, first_token)


def _outputs(model: Model) -> int:
    """The size of the vocabulary, or the number of classes."""
    maps = [step for step in model.network.head.steps if isinstance(step, Linear)]
    if not maps:
        raise UnweaveError(
            f"{model.name} has no output head: load the language model or classifier"
        )
    return maps[-1].shape[0]


def _ragged(rows: Sequence[Sequence[int]], device: torch.device) -> Int[Tensor, "batch n"]:
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[-1] * (width - len(row))] for row in rows], device=device)
