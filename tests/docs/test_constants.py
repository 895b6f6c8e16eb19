"""docs/study.md says of every constant and option of a search what its value is, and what backs it:
it was halved and doubled, and what it says of that agrees with the table of what was found."""

import re
import runpy
from dataclasses import asdict

import pytest
from snippets import ROOT

from unweave.search.search import searches
from unweave.search.settings import SEARCH

NAME = r"`([a-z0-9]+(?:\.| -o )[a-z_]+)`"
ROW = re.compile(rf"^\| {NAME} \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
HEAD = "| constant or option | value | backed by |"
BENCH = runpy.run_path(str(ROOT / "benchmarks" / "constants.py"))
PAGE = (ROOT / "docs" / "study.md").read_text("utf-8")
Cells = dict[tuple[str, str], list[str]]  # of each name and value


def constants(page: str) -> list[tuple[str, str, str]]:
    """Rows of the table of constants: name, value and what backs it."""
    return ROW.findall(page.partition(HEAD)[2].partition("\n\n")[0])


def tables(page: str) -> dict[str, Cells]:
    """What the study found of each search, as the benchmark prints it."""
    found = {}
    for title in BENCH["STUDIES"]:
        head = re.escape(f"| {title} | value | ")
        rows = re.search(rf"^{head}.*\n\|[-|]+\n((?:\|.*\n)+)", page, re.MULTILINE)
        assert rows is not None, f"no table of {title}"
        cells = [re.split(r" *\| *", row.strip("| ")) for row in rows[1].splitlines()]
        found[title] = {(name.strip("`"), value): rest for name, value, *rest in cells}
    return found


def changes(name: str, page: str) -> bool:
    """Whether any circuit became another where a constant had another value."""
    rows = (row for table in tables(page).values() for row in table.items())
    cells = [cell for (one, _), cells in rows if one == name for cell in cells if cell != "–"]
    assert cells, f"{name} was not measured"
    return not all(cell.startswith("same") for cell in cells)


def test_every_constant_of_a_search_is_in_the_table():
    settings = {
        f"{part}.{name}": BENCH["shown"](value)
        for part, fields in asdict(SEARCH).items()
        for name, value in fields.items()
    }
    options = {
        f"{search} -o {name}": BENCH["shown"](option.default)
        for search in searches
        for name, option in searches[search].options.items()
    }
    assert len(settings) > 20
    assert len(options) > 20
    rows = constants(PAGE)
    assert {name: value for name, value, _ in rows} == settings | options
    assert len(rows) == len(settings) + len(options), "a row stands twice"
    studied = {name for study in BENCH["STUDIES"].values() for name in study.names()}
    assert studied == settings.keys() | options.keys()


@pytest.mark.parametrize("title", BENCH["STUDIES"])
def test_every_constant_was_halved_and_doubled(title: str):
    found = tables(PAGE)[title]
    wanted = {
        (name, BENCH["shown"](value))
        for name in BENCH["STUDIES"][title].names()
        for value in BENCH["others"](name)
    }
    assert wanted
    assert wanted == found.keys() - {(BENCH["AS_IS"], "")}
    assert [key for key, cells in found.items() if set(cells) == {"–"}] == []


def backed(name: str, reason: str, page: str) -> bool:
    """Whether a reason says of the circuits what the tables say; what follows that has to be a row
    or a section that there is."""
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    words = (re.sub(r"[^\w -]", "", heading).lower() for heading in headings)
    anchors = {text.replace(" ", "-") for text in words}
    before, _, after = page.partition(HEAD)
    firsts = re.findall(r"^\| ([^|`-][^|]*) \|", before + after, re.MULTILINE)
    said, *rest = map(str.strip, reason.split(";"))
    claim = said.partition(":")[0]
    if claim == "no limit":
        return not BENCH["others"](name)
    claims = {"the same circuits": False, "other circuits": True}
    if claims.get(claim) is not changes(name, page):
        return False
    return all(
        set(links) <= anchors
        if (links := re.findall(r"\]\(#([\w-]+)\)", one))
        else any(first.startswith(one.rpartition(": ")[2]) for first in firsts)
        for one in rest
    )


def test_what_backs_a_constant_is_on_the_page():
    rows = constants(PAGE)
    assert [(name, reason) for name, _, reason in rows if not backed(name, reason, PAGE)] == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("descent.tried", "by hand"),
        ("descent.tried", "no limit"),
        ("descent.tried", "other circuits; a row of the moon"),
        ("descent.tried", "other circuits; [The moon](#the-moon)"),
        ("top.sizes", "the same circuits"),
        ("top.growth", "other circuits"),
    ],
)
def test_a_reason_that_the_page_does_not_bear_out_is_found(name: str, reason: str):
    assert not backed(name, reason, PAGE)
