"""A text as words over tokens: what gets a score, and what can be left out."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from unweave.behaviours.alignment import paired
from unweave.behaviours.prompt import MOST_CHARACTERS, Span
from unweave.errors import UnweaveError
from unweave.model.model import Model

# A word with its apostrophes, a character of a script that is written without blanks, or a sign.
_WORD = re.compile(r"[぀-ヿ㐀-鿿豈-﫿]|(?:(?![぀-ヿ㐀-鿿豈-﫿])\w)+(?:['’]\w+)*|[^\w\s]")


@dataclass(frozen=True)
class Word:
    """A word, a phrase or a special token.

    Args:
        text: As it is written; a special token's name.
        tokens: Its positions.
        fixed: Whether it is never ablated: special tokens, and the mask that a masked language
            model fills.
    """

    text: str
    tokens: tuple[int, ...]
    fixed: bool = False


@dataclass(frozen=True, eq=False)
class EncodedText:
    """A text for one model.

    Args:
        ids: Token ids.
        spans: The characters that each token covers, (0, 0) for special ones.
        words: All tokens, each in one word, in their order.
        read: Position at which the output is read.
    """

    text: str
    ids: tuple[int, ...]
    spans: tuple[Span, ...]
    words: tuple[Word, ...]
    read: int

    def phrase(self, phrase: "str | Span") -> Word:
        """The tokens of a piece of the text, given as it is written or as characters [start, end].

        Raises:
            UnweaveError: When it is not there, or there several times.
        """
        if isinstance(phrase, str):
            count = self.text.count(phrase) if phrase else 0
            if count != 1:
                raise UnweaveError(
                    f"the phrase {phrase!r} is {count} times in {_short(self.text)}: give its "
                    "characters (start, end)"
                )
            start = self.text.index(phrase)
            phrase = (start, start + len(phrase))
        start, end = phrase
        inside = tuple(i for i, (a, b) in enumerate(self.spans) if a < end and start < b)
        if not inside:
            raise UnweaveError(
                f"characters {start}–{end} of {_short(self.text)} cover no token: give those of "
                "a whole word"
            )
        return Word(self.text[start:end], inside)


def read_text(model: Model, text: str, truncate: bool = False) -> EncodedText:
    """Encodes a text and groups its tokens to words.

    Args:
        truncate: Whether a text that is too long is cut; by default it is an error.

    Raises:
        UnweaveError: For an empty text, or one longer than the model's limit.
    """
    if not text.strip():
        raise UnweaveError("the text is empty: give at least one word")
    if len(text) > MOST_CHARACTERS:
        raise UnweaveError(
            f"{_short(text)} has {len(text):,} characters, at most {MOST_CHARACTERS:,} are "
            "possible: shorten it"
        )
    ids, spans = model.encode(text)
    limit = model.token_limit
    if not truncate:
        remedy = "shorten it, or cut it with truncate=True (--truncate)"
        model.check_length(len(ids), _short(text), remedy)
    elif limit is not None and len(ids) > limit:
        # A special token at the end stays there.
        tail = 1 if spans[-1] == (0, 0) else 0
        ids = [*ids[: limit - tail], *ids[len(ids) - tail :]]
        spans = [*spans[: limit - tail], *spans[len(spans) - tail :]]
    if all(span[0] == span[1] for span in spans):
        raise UnweaveError(f"the text {text!r} has no tokens: give at least one word")
    read = _read(model, ids)
    return EncodedText(text, tuple(ids), tuple(spans), _words(model, text, ids, spans, read), read)


def counterfactual_row(model: Model, text: EncodedText, corrupted: str) -> list[int]:
    """The text's tokens, each replaced by its counterpart in the corrupted text.

    A token without a counterpart is replaced by padding. Prompts of one length give the corrupted
    text itself.
    """
    row, (other, _) = blank(model, text), model.encode(corrupted)
    fixed = {i for word in text.words if word.fixed for i in word.tokens}
    for i, where in enumerate(paired(text.ids, other)):
        if where is not None and i not in fixed:
            row[i] = other[where]
    return row


def blank(model: Model, text: EncodedText) -> list[int]:
    """The text's tokens with padding for every word; special tokens and the mask stay."""
    names = ("pad_token_id", "unk_token_id", "eos_token_id", "bos_token_id")
    known = (getattr(model.tokenizer, name, None) for name in names)
    filler = next((token for token in known if token is not None), 0)
    fixed = {i for word in text.words if word.fixed for i in word.tokens}
    return [token if i in fixed else filler for i, token in enumerate(text.ids)]


def _read(model: Model, ids: Sequence[int]) -> int:
    if model.family == "image":
        raise UnweaveError(
            f"{model.name} reads images: attribution needs text, choose a model of it"
        )
    if model.network.head.first:
        return 0
    if model.family != "encoder":
        return len(ids) - 1
    mask = getattr(model.tokenizer, "mask_token_id", None)
    if not model.network.head.steps:
        raise UnweaveError(
            f"{model.name} has no output head: load the classifier or language model, or give it "
            "classes (unweave.model.probe.with_classes)"
        )
    if mask is None or mask not in ids:
        sign = "its mask token" if mask is None else model.decode(mask)
        raise UnweaveError(
            f"{model.name} is a masked language model: put {sign} where the word to explain belongs"
        )
    return list(ids).index(mask)


def _words(
    model: Model, text: str, ids: Sequence[int], spans: Sequence[Span], read: int
) -> tuple[Word, ...]:
    """Tokens that begin in one word of the text are one word; word pieces are merged so."""
    owner = {}
    for number, match in enumerate(_WORD.finditer(text)):
        owner.update(dict.fromkeys(range(*match.span()), number))
    groups: list[tuple[object, list[int]]] = []
    for i, (start, end) in enumerate(spans):
        # A space before a word belongs to its token; blanks alone are a word of their own.
        begin = next((c for c in range(start, end) if c in owner), None)
        key: object = ("alone", i) if begin is None else owner[begin]
        if groups and groups[-1][0] == key:
            groups[-1][1].append(i)
        else:
            groups.append((key, [i]))
    masked = model.family == "encoder" and not model.network.head.first
    return tuple(_word(model, text, ids, spans, tokens, masked, read) for _, tokens in groups)


def _word(
    model: Model,
    text: str,
    ids: Sequence[int],
    spans: Sequence[Span],
    tokens: list[int],
    masked: bool,
    read: int,
) -> Word:
    start, end = spans[tokens[0]][0], max(spans[i][1] for i in tokens)
    if start == end:
        return Word(model.decode(ids[tokens[0]]), tuple(tokens), fixed=True)
    return Word(text[start:end].strip(), tuple(tokens), fixed=masked and read in tokens)


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}…")
