"""What is explained: one output minus another, a class or a token each."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unweave.ablation import ZERO
from unweave.attribution.texts import EncodedText
from unweave.behaviours.words import Words, continues
from unweave.errors import UnweaveError
from unweave.model.model import Model
from unweave.model.program import Inputs, run
from unweave.model.weights import Linear
from unweave.patching.circuits import Patch
from unweave.registry import nearest


@dataclass(frozen=True)
class MetricTarget:
    """logit[answer] − logit[other].

    Args:
        predicted: The name of the output with the largest logit.
        metric: The logit difference itself.
    """

    answer: int
    other: int
    name: str
    predicted: str
    metric: float


def reads_of(
    model: Model, texts: Sequence[EncodedText], decoder: Sequence[int] | None
) -> Int[Tensor, " batch"]:
    """Where the output is read: the decoder's last token in an encoder-decoder."""
    if model.network.encoder is not None and not model.network.head.first:
        last = 0 if decoder is None else len(decoder) - 1
        reads = [last] * len(texts)
    else:
        reads = [text.read for text in texts]
    return torch.tensor(reads, device=model.network.device)


def read_logits(
    model: Model, inputs: Inputs, read: Int[Tensor, " batch"]
) -> Float[Tensor, "batch out"]:
    """The outputs at one position a row."""
    with torch.no_grad():
        return run(model.network, inputs, Patch({}, ZERO, len(read), read[:, None]))[:, 0]


def find_targets(
    model: Model,
    texts: Sequence[EncodedText],
    target: str | int | None,
    against: str | int | None,
    decoder: Sequence[int] | None = None,
) -> list[MetricTarget]:
    """The target of each text: what was asked for, else the prediction against the runner-up.

    Raises:
        UnweaveError: For an unknown class, or a text that is not one token.
    """
    if not any(isinstance(step, Linear) for step in model.network.head.steps):
        raise UnweaveError(
            f"{model.name} has no output head to explain: load the classifier or language model"
        )
    ids = [text.ids for text in texts]
    found = read_logits(model, model.rows(ids, decoder), reads_of(model, texts, decoder))
    targets = []
    for text, row in zip(texts, found, strict=True):
        best = [int(i) for i in row.topk(min(3, len(row))).indices]
        answer = best[0] if target is None else _output(model, text, target, row)
        if against is None:
            other = next((i for i in best if i != answer), answer)
        else:
            other = _output(model, text, against, row)
        if other == answer:
            raise UnweaveError(
                f"{_name(model, answer)} is compared with itself: give another --against"
            )
        name = f"{_name(model, answer)} − {_name(model, other)}"
        metric = float(row[answer] - row[other])
        targets.append(MetricTarget(answer, other, name, _name(model, best[0]), metric))
    return targets


def _output(
    model: Model, text: EncodedText, wanted: str | int, logits: Float[Tensor, " out"]
) -> int:
    outputs = len(logits)
    labels = model.network.head.labels
    if isinstance(wanted, str) and wanted not in labels and (labels or model.network.head.first):
        if not re.fullmatch(r"-?[0-9]{1,9}", wanted):
            raise UnweaveError(
                f"{wanted!r} is not a class of {model.name}: {nearest(wanted, labels)}"
            )
        wanted = int(wanted)
    if isinstance(wanted, int):
        if not 0 <= wanted < outputs:
            raise UnweaveError(f"{model.name} has outputs 0–{outputs - 1}: found {wanted}")
        return wanted
    if labels:
        return labels.index(wanted)
    context = text.text if model.family == "decoder" else ""
    words = Words(model)
    remedy = "choose a word of one token, mind the leading space"
    try:
        found = words.token(context, wanted, remedy)
    except UnweaveError:
        _check_space(words, context, wanted, None, logits)
        raise
    _check_space(words, context, wanted, found, logits)
    return found


def _check_space(
    words: Words,
    context: str,
    wanted: str,
    found: int | None,
    logits: Float[Tensor, " out"],
) -> None:
    """Raises where a word lacks its leading space: " Paris" and "Paris" are different tokens.

    So it is where the word would continue the text's last word, and where the model itself
    expects the token with the space more than the one without.
    """
    if not wanted[:1].isalnum() or context[-1:].isspace():
        return
    spaced = words.after(context, f" {wanted}")
    unknown = getattr(words.model.tokenizer, "unk_token_id", None)  # stands for no word
    if len(spaced) != 1 or spaced[0] in (found, unknown):
        return
    likelier = found is None or bool(logits[spaced[0]] > logits[found])
    if likelier or continues(context, wanted):
        number = "" if found is None else f" (in Python, {found} is the token without)"
        raise UnweaveError(
            f"{wanted!r} has no leading space and {words.model.name} has a token with it: write "
            f"{' ' + wanted!r}{number}"
        )


def _name(model: Model, output: int) -> str:
    labels = model.network.head.labels
    if labels:
        return labels[output]
    if model.network.head.first or model.tokenizer is None:
        return str(output)
    return repr(model.decode(output))
