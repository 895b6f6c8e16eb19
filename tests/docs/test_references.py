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


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site name them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip() for heading in headings]
    return {re.sub(r"\s+", "-", heading).lower() for heading in plain}


def test_every_link_of_the_front_pages_leads_somewhere():
    """Links between pages of docs/ are checked by `make docs`; these lie outside of it."""
    links = [
        (page, link)
        for page in sorted(ROOT.glob("*.md"))
        for link in re.findall(r"(?:\]\(|src=\")([^)\"\s]+)", page.read_text(encoding="utf-8"))
        if not link.startswith(("http:", "https:"))
    ]
    assert len(links) > 10
    for page, link in links:
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


def test_the_recipes_are_short():
    assert len((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()) <= 80
