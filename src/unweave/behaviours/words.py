"""`Words`: which texts are one token for a model, and what a text becomes after another."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from unweave.behaviours.prompt import Span, short
from unweave.errors import UnweaveError
from unweave.model.model import Model

# Tokenizers split at blanks before anything else, so the last word is all the context there is.
_TAIL = re.compile(r"\s*\S+\s*\Z")


def _tail(context: str) -> str:
    found = _TAIL.search(context)
    return found.group() if found else context


def continues(context: str, text: str) -> bool:
    """Whether a text would continue the last word of its context: "toMary" is not "to Mary".

    Scripts without upper case may write without spaces.
    """
    return _cased(context[-1:]) and _cased(text[:1])


def _cased(letter: str) -> bool:
    return letter.lower() != letter.upper()


@dataclass(frozen=True, eq=False)
class Words:
    """A tokenizer's view of the words that a task is made of."""

    model: Model
    _encoded: dict[str, list[tuple[int, Span]]] = field(default_factory=dict, repr=False)

    def single(self, candidates: str | Iterable[str], at_least: int = 1) -> list[str]:
        """Those words that are one token within a sentence, no two of them the same token.

        Args:
            candidates: Words without the leading space; a text is split at its blanks.
            at_least: How many the task needs.

        Raises:
            UnweaveError: When fewer are left.
        """
        candidates = candidates.split() if isinstance(candidates, str) else list(candidates)
        found: dict[int, str] = {}
        for word in candidates:
            tokens = self.after("a", f" {word}")
            if len(tokens) == 1 and tokens[0] != self._unknown:
                found.setdefault(tokens[0], word)
        if len(found) < at_least:
            raise UnweaveError(
                f"the tokenizer of {self.model.name} keeps {len(found)} of {len(candidates)} words "
                f"({', '.join(candidates[:3])}, …) as single tokens, {at_least} are needed: choose "
                "another model or other words"
            )
        return list(found.values())

    def after(self, context: str, text: str) -> tuple[int, ...]:
        """The tokens that `text` becomes when it follows `context`.

        Sentencepiece marks the start of a text, byte-level BPE keeps the space in the word: only
        the context tells which token follows. Where both would merge into other tokens ("17" and
        "34" into "1734"), those of the text on its own.
        """
        before = _tail(context)
        if self.merges(context, text):
            return self._ids(text)
        return self._ids(before + text)[len(self._ids(before)) :]

    def merges(self, context: str, text: str) -> bool:
        """Whether the last tokens of `context` are other ones when `text` follows."""
        before = _tail(context)
        known = self._ids(before)
        return self._ids(before + text)[: len(known)] != known

    def token(self, context: str, text: str, remedy: str, first: bool = False) -> int:
        """The one token that `text` is after `context`.

        Args:
            remedy: What to do about a text of several tokens.
            first: Whether the first of several stands for all.

        Raises:
            UnweaveError: When it is not a single token, or is one that the tokenizer does not know.
        """
        tokens, name = self.after(context, text), self.model.name
        if tokens and tokens[0] == self._unknown:
            raise UnweaveError(
                f"{short(text)} is not in the vocabulary of {name}: choose another word"
            )
        if len(tokens) == 1 or (first and tokens):
            return tokens[0]
        pieces = "|".join(self.model.decode(token) for token in tokens[:8])
        raise UnweaveError(f"{short(text)} is {len(tokens)} tokens for {name} ({pieces}): {remedy}")

    def pieces(self, text: str) -> list[Span]:
        """The characters that each token of a text covers, special tokens left out."""
        return [span for _, span in self._tokens(text)]

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(token for token, _ in self._tokens(text))

    def _tokens(self, text: str) -> list[tuple[int, Span]]:
        if text not in self._encoded:
            ids, spans = self.model.encode(text)
            real = [(i, span) for i, span in zip(ids, spans, strict=True) if span[0] < span[1]]
            self._encoded[text] = real
        return self._encoded[text]

    @property
    def _unknown(self) -> int | None:
        return getattr(self.model.tokenizer, "unk_token_id", None)
