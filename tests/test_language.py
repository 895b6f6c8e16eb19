"""Prose of the source and the documentation has the words of the field, not our own for them."""

import io
import re
import tokenize
from collections.abc import Iterator

import pytest
from snippets import ROOT

SOURCE = ROOT / "src" / "unweave"
# What is not written, and what is written in its place.
WORDS = {
    r"\btold\b": "given, named, listed, shown",
    r"\bat hand\b": "available",
    r"\bso many\b": "this many",
    r"(?<![Tt]here )\bis no\b(?! longer)": "is not a",
    r"\bbetter than chance\b|\bchance level\b|\bby chance\b": "random circuits",
    r"\bjudge\b|\bjudging\b": "held-out",
}
# Where a word is meant as it stands.
ALLOWED = {
    "src/unweave/behaviours/sva.py": "They told us",  # a prompt
}


def prose_of_source() -> Iterator[tuple[str, str]]:
    """Strings, docstrings and comments of the source, and everything that the page is made of."""
    for path in sorted(SOURCE.rglob("*.py")):
        source = path.read_text("utf-8")
        # From Python 3.12 the text of an f-string is a token of its own.
        inner = getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)
        kinds = (tokenize.STRING, tokenize.COMMENT, inner)
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type in kinds:
                yield f"{path.relative_to(ROOT)}:{token.start[0]}", token.string
    for path in sorted((SOURCE / "report" / "page").iterdir()):
        # Names of variables are not prose.
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            yield f"{path.relative_to(ROOT)}:{number}", re.sub(r"\btold\b", "", line)


def prose_of_documentation() -> Iterator[tuple[str, str]]:
    pages = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
    for path in pages:
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            yield f"{path.relative_to(ROOT)}:{number}", line


@pytest.mark.parametrize("prose", [prose_of_source, prose_of_documentation])
def test_words_of_the_field(prose) -> None:
    found = []
    for where, text in prose():
        text = text.replace(ALLOWED.get(where.partition(":")[0], "\0"), "")
        for pattern, instead in WORDS.items():
            if match := re.search(pattern, text):
                found.append(f"{where}: {match[0]!r}; write {instead}")
    assert found == []
