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
