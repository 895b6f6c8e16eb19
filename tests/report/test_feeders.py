"""Lines of a circuit of nodes: what feeds a query, key or value, where patching confirmed it."""

import json
from pathlib import Path
from typing import Any

import pytest
from browser_pages import needs_browser, open_page

from unweave.experiments.discover import discover
from unweave.model.loading import load
from unweave.report.html import write_report

pytestmark = needs_browser
TASK = "wired-suppression"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("feeders") / "run"
    discover(load(TASK), TASK, out=folder)
    return folder


def confirmed(folder: Path) -> set[str]:
    """Lines whose check held, from the measurements in explain.json."""
    held = set()
    for node in json.loads((folder / "explain.json").read_text())["nodes"]:
        figures = node["measurements"]
        for branch, shares in figures["feeds"].items():
            strong = {s: x for s, x in shares.items() if abs(x) >= 0.1 and "embed" not in s}
            for source in sorted(strong, key=lambda s: -abs(strong[s]))[:3]:
                fed, share = figures["fed"][branch][source], strong[source]
                of = figures["moved"][branch] if branch else {"output": 1.0, "error": 0.0}
                decides = of["output"] >= 0.1 and of["output"] > 2 * of["error"]
                follows = fed["output"] * share / abs(share) >= max(0.05 * of["output"], 0.02)
                line = f"{source} → {node['node']} ({branch}) {round(100 * share)}% of it"
                if decides and follows and abs(fed["output"]) > 2 * fed["error"]:
                    held.add(line)
        direct, whole = figures["direct"], figures["effect"]["size"] / figures["effect_share"]
        if abs(direct["mean"]) > 2 * direct["error"] and abs(direct["mean"] / whole) >= 0.1:
            percent = round(100 * direct["mean"] / whole)
            held.add(f"{node['node']} → logits {percent}% of the metric directly")
    return held


def test_lines_are_the_feeders_that_patching_confirmed(browser: Any, folder: Path) -> None:
    held = confirmed(folder)
    # What was wired: the previous-token head feeds the keys of both induction heads.
    ends = {line.rpartition(" (")[0] for line in held if "(k)" in line}
    assert {"a1.h2 → a2.h0", "a1.h2 → a2.h3"} <= ends
    page = open_page(browser, write_report([folder]))
    titles = page.locator("#graph .edge.fed title").all_text_contents()
    assert sorted(titles) == sorted(held)
    assert page.locator("#graph .edge").count() == len(titles), "nothing untested is drawn at first"
    assert "patched out" in page.locator("#graph-legend").inner_text()
    ports = page.locator("#graph .port").all_text_contents()
    into = {tuple(line.split(" → ")[1].split(" ")[:2]) for line in held if "(" in line}
    assert len(ports) == len(into)
    assert page.problems == []


def test_a_chosen_node_keeps_its_own_lines(browser: Any, folder: Path) -> None:
    held = confirmed(folder)
    page = open_page(browser, write_report([folder]), view="#view&node=a2.h0")
    titles = page.locator("#graph .edge.fed title").all_text_contents()
    assert sorted(titles) == sorted(line for line in held if "a2.h0" in line)
