"""`Prompt`: one clean text, its corrupted counterpart, and what should follow."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from unweave.errors import UnweaveError

Span = tuple[int, int]
Answer = str | int
OTHERS = -1  # as a distractor: every class that is not an answer
MOST_CHARACTERS = 100_000  # of a text: tokenizers need about a kilobyte a character


def short(value: object) -> str:
    """A value for an error of one line."""
    said = repr(value)
    return said if len(said) <= 80 else f"{said[:77]}…"


@dataclass(frozen=True)
class Prompt:
    """One example of a task, as text, for any tokenizer.

    Args:
        clean: The text that shows the behaviour.
        corrupted: The same text without what the behaviour needs.
        answers: What should follow the clean text, verbatim (mind the leading space); an integer
            is a token id, or a class of a classifier.
        distractors: What should not; `OTHERS` for every other class of a classifier.
        template: Prompts of one template and one length align token by token.
        spans: Named positions as character spans of the clean text.
        key: Prompts with one key never fall into different parts (see `sampling.py`);
            the clean text unless given. Give one where prompts share a text, such as a corrupted
            prompt that is another prompt's clean one.

    Raises:
        UnweaveError: When the prompt cannot be measured, with the reason.
    """

    clean: str
    corrupted: str
    answers: tuple[Answer, ...]
    distractors: tuple[Answer, ...]
    template: str = ""
    spans: Mapping[str, Span] = field(default_factory=dict)
    key: str = ""

    def __post_init__(self) -> None:
        self._check_lengths()
        if not self.clean or not self.corrupted:
            empty = "corrupted" if self.clean else "clean"
            raise UnweaveError(f"the {empty} text is empty: give at least one word")
        if self.clean == self.corrupted:
            raise UnweaveError(
                f"clean and corrupted are the same text, {short(self.clean)}: corrupt what the "
                "answer depends on"
            )
        texts = (self.clean, self.corrupted, *self.answers, *self.distractors)
        if any("\ud800" <= c <= "\udfff" for text in texts for c in str(text)):
            raise UnweaveError(
                "a text has half a character (a lone surrogate): correct its encoding"
            )
        for noun, texts in (("answer", self.answers), ("distractor", self.distractors)):
            if not texts:
                raise UnweaveError(f"there is no {noun}: give at least one")
            if "" in texts:
                raise UnweaveError(f"an empty {noun}: give a word, with its leading space")
        if both := [text for text in self.answers if text in self.distractors]:
            raise UnweaveError(f"{short(both[0])} is an answer and a distractor: drop one")
        for name, span in self.spans.items():
            _check_span(name, span, self.clean)

    def _check_lengths(self) -> None:
        named = [("clean text", self.clean), ("corrupted text", self.corrupted)]
        named += [("answer", text) for text in self.answers]
        named += [("distractor", text) for text in self.distractors]
        for noun, text in named:
            if isinstance(text, str) and len(text) > MOST_CHARACTERS:
                raise UnweaveError(
                    f"the {noun} has {len(text):,} characters, at most {MOST_CHARACTERS:,} are "
                    "possible: shorten it"
                )


def _check_span(name: str, span: Span, text: str) -> None:
    if not name or name.lstrip("-").isdigit() or any(c.isspace() or c == "@" for c in name):
        raise UnweaveError(
            f"{short(name)} cannot name a position: use letters, without spaces or @, not a number"
        )
    if name == "end":
        raise UnweaveError("the position 'end' is where the metric reads: choose another name")
    start, end = span
    if not 0 <= start < end <= len(text):
        raise UnweaveError(
            f"position {name!r} is [{start}, {end}] in a text of {len(text)} characters: expected "
            f"0 ≤ start < end ≤ {len(text)}"
        )


def fill(pattern: str, **words: str) -> tuple[str, dict[str, Span]]:
    """Fills the `{slots}` of a pattern and gives the span of each word.

    A slot written `{word:label}` is filled with `word` and its span is called `label`, so that
    one word can have several named positions.
    """
    text, spans, rest = "", {}, pattern
    while "{" in rest:
        literal, _, rest = rest.partition("{")
        slot, _, rest = rest.partition("}")
        word, _, label = slot.partition(":")
        text += literal
        spans[label or word] = (len(text), len(text) + len(words[word]))
        text += words[word]
    return text + rest, spans
