"""The page of a run that searched edges: figures that count edges, lines into q, k and v."""

from pathlib import Path
from typing import Any

import pytest
from browser_pages import needs_browser, open_page

from unweave.experiments.discover import discover
from unweave.experiments.evaluate import evaluate_run
from unweave.experiments.run_folder import read_run
from unweave.experiments.specification import Specification
from unweave.model.loading import load
from unweave.report.html import write_report

pytestmark = needs_browser
TASK = "wired-induction"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, model = tmp_path_factory.mktemp("edges") / "run", load(TASK)
    discover(model, TASK, Specification(TASK, TASK, prompts=4, held_out=4, level="edge"), folder)
    evaluate_run(read_run(folder), lambda how: model, draws=2)
    return write_report([folder])


def test_the_page_counts_edges(browser: Any, report: Path) -> None:
    page = open_page(browser, report)
    edges = [edge.name for edge in read_run(report.parent).circuit.edges]
    assert page.locator("#graph .edge").count() == len(edges)
    titles = page.locator("#graph .edge title").all_text_contents()
    assert any(title.startswith("a1.h2 → a2.h0 (k) ") for title in titles)
    assert not page.locator("#relevance").is_checked()
    verdict = page.locator("#verdict").inner_text()
    assert "edges in the circuit" in verdict
    assert "5 of 193 edges among 2 nodes" in verdict
    assert "0 of 5 edges" in verdict
    shown = page.locator("#faith-out").inner_text()
    assert float(shown) == pytest.approx(1, abs=0.02)
    # A part of the nodes is no circuit of edges that was measured.
    page.locator("#count").fill("1")
    assert page.locator("#faith-out").inner_text() == "–"
    assert page.problems == []
