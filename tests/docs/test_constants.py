"""docs/study.md says of every constant and option of a search what its value is."""

import re
from dataclasses import asdict
from typing import Any

from snippets import ROOT

from unweave.search.search import searches
from unweave.search.settings import SEARCH

ROW = re.compile(r"^\| `([a-z0-9]+(?:\.| -o )[a-z_]+)` \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


def shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def test_every_constant_of_a_search_is_in_the_table():
    constants = {
        f"{part}.{name}": shown(value)
        for part, fields in asdict(SEARCH).items()
        for name, value in fields.items()
    }
    options = {
        f"{search} -o {name}": shown(option.default)
        for search in searches
        for name, option in searches[search].options.items()
    }
    assert len(constants) > 20
    assert len(options) > 20
    rows = ROW.findall((ROOT / "docs" / "study.md").read_text("utf-8"))
    assert {name: value for name, value, _ in rows} == constants | options
    assert len(rows) == len(constants) + len(options), "a row stands twice"


# What a constant may rest on beside a row or a section of the study.
REASONS = ("by hand", "float32", "the paper", "no limit", "the price decides", "changes the cost")


def backed(reason: str, page: str) -> bool:
    """Whether a reason names something there is: a row, a section, an option of another search."""
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    words = (re.sub(r"[^\w -]", "", heading).lower() for heading in headings)
    anchors = {text.replace(" ", "-") for text in words}
    tables = page.partition("| constant or option |")
    firsts = re.findall(r"^\| ([^|`-][^|]*) \|", tables[0] + tables[2], re.MULTILINE)
    reason = reason.strip()
    links = re.findall(r"\]\(#([\w-]+)\)", reason)
    if links:
        return all(link in anchors for link in links)
    if reason.startswith(REASONS) or reason.endswith("by hand"):
        return True
    if search := re.match(r"that of `(\w+)`", reason):
        return search[1] in searches
    return any(first.startswith(reason.rpartition(": ")[2]) for first in firsts)


def test_what_backs_a_constant_is_on_the_page():
    page = (ROOT / "docs" / "study.md").read_text("utf-8")
    rows = ROW.findall(page)
    cited = [(name, part) for name, _, reasons in rows for part in reasons.split(";")]
    assert [(name, reason) for name, reason in cited if not backed(reason, page)] == []
    for nothing in (
        "a row of the moon",
        "[The moon](#the-moon)",
        "that of `moon`",
        "price of gold",
    ):
        assert not backed(nothing, page)
