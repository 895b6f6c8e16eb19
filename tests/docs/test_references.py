"""References from the code to the documentation, and between pages, lead somewhere."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_SECTIONS = re.compile(r"docs/method\.md\s+§§?\s*(\d+(?:[,–-]\s*\d+)*)")
_PAGES = re.compile(r"docs/[\w-]+\.md")


def sources() -> list[Path]:
    return [
        path for folder in ("src", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")
    ]


def test_every_section_that_the_code_names_is_in_the_method():
    text = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
    sections = set(re.findall(r"^## (\d+)\. ", text, re.MULTILINE))
    named = {
        (number, path.name)
        for path in sources()
        for match in _SECTIONS.finditer(path.read_text(encoding="utf-8"))
        for number in re.findall(r"\d+", match[1])
    }
    assert len(named) > 10
    assert not [pair for pair in named if pair[0] not in sections]


def test_every_page_that_the_code_names_exists():
    named = {
        page for path in sources() for page in _PAGES.findall(path.read_text(encoding="utf-8"))
    }
    assert "docs/method.md" in named
    assert not [page for page in named if not (ROOT / page).is_file()]
