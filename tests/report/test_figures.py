"""Every figure on the page equals one computed again from the run's files, signs and orders too."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
from browser_pages import needs_browser, open_page
from oracles import report_figures as again
from run_folders import write_run

from unweave.report.html import write_report

pytestmark = needs_browser
PLOT = "document.querySelector('#{} .plot')"


def cells(page: Any, table: str) -> list[list[str]]:
    """The texts of a table's body."""
    rows = page.locator(f"{table} tbody tr").all()
    return [[" ".join(c.split()) for c in row.locator("th, td").all_inner_texts()] for row in rows]


def close(shown: Any, wanted: Any) -> bool:
    """Equal to the digits that the page keeps; None stands where there is no value."""
    if shown is None or wanted is None:
        return shown is wanted
    return math.isclose(shown, wanted, rel_tol=1e-5, abs_tol=1e-9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "my run")


@pytest.fixture(scope="module")
def page(browser: Any, folder: Path) -> Any:
    page = open_page(browser, write_report([folder]))
    # Closed tables have no text for a browser.
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    yield page
    assert page.problems == []


def test_the_sentence_comes_first_and_tiles_name_their_prompts(page: Any, folder: Path) -> None:
    files = again.Files(folder)
    assert page.locator("#verdict .sentence").inner_text() == files.run["verdict"]["sentence"]
    assert page.locator("main > section").first.get_attribute("id") == "verdict"
    names = page.locator("#verdict .tiles dt").all_inner_texts()
    values = [" ".join(v.split()) for v in page.locator("#verdict .tiles dd").all_inner_texts()]
    assert dict(zip(names, values, strict=True)) == again.tiles(files)


def test_faithfulness_under_every_ablation(page: Any, folder: Path) -> None:
    files = again.Files(folder)
    assert cells(page, "#ablations") == again.ablation_rows(files)
    drawn = page.evaluate(f"{PLOT.format('verdict-plot')}.data.map(t => [t.x, t.y])")
    (ends, _), (values, _) = drawn
    rows = [
        *files.run["verdict"]["faithfulness"].values(),
        *files.evaluation["faithfulness"].values(),
    ]
    assert all(map(close, values, [row["value"] for row in rows]))
    assert ends == [x for row in rows if "interval" in row for x in (*row["interval"], None)]


def test_facts_of_the_verdict(page: Any, folder: Path) -> None:
    files = again.Files(folder)
    names = page.locator("#verdict-facts dt").all_inner_texts()
    values = [" ".join(v.split()) for v in page.locator("#verdict-facts dd").all_inner_texts()]
    told = list(zip(names, values, strict=True))
    assert told[0] == again.random_fact(files)
    gaps = [value for name, value in told if name == "completeness gap"]
    for shown, record in zip(gaps, (files.run["verdict"], files.evaluation), strict=True):
        average, worst = map(again.num, again.completeness_gaps(record["completeness"]))
        assert shown.startswith(f"{average} on average, at worst {worst}:")
        assert f"on {record['prompts']} held-out prompts" in shown
    idle = [value for name, value in told if name == "could lose"]
    for shown, record in zip(idle, (files.run["verdict"], files.evaluation), strict=True):
        listed = record["minimality"]["idle"]
        assert shown.startswith(f"{len(listed)} of {len(files.circuit['nodes'])} nodes")
        assert ", ".join(listed) in shown
    kinds = files.run["verdict"]["templates"]
    for kind, found in kinds.items():
        value = (found["metric"] - found["empty"]) / (found["full"] - found["empty"])
        ends = " to ".join(map(again.num, found["interval"]))
        told_on = f"on {found['prompts']} held-out prompts (discover)"
        shown = dict(told)[f"faithfulness, {kind} templates"]
        assert shown == f"{again.num(value)} 95% {ends}, {told_on}"
    assert sum(found["prompts"] for found in kinds.values()) == files.circuit["prompts"]
    of = f"on {files.run['curve']['prompts']} held-out prompts"
    assert dict(told)["curve gap, curve area"].endswith(of)
    assert dict(told)["size for 80% and 95%"].endswith(of)
    over = files.run["overshoot"][0]
    assert f"{over['site']} {again.signed(over['effect'])}" in dict(told)["above 1 because of"]


def sort_nodes(page: Any, by: str) -> None:
    """Sorts the table of nodes, the largest first."""
    header = page.locator("#nodes-table thead th").filter(has_text=re.compile(f"^{by}"))
    while header.get_attribute("aria-sort") != "descending":
        header.locator("button").click()


@pytest.mark.parametrize("by", ["effect", "score", "order"])
def test_nodes_by_effect_score_or_order(page: Any, folder: Path, by: str) -> None:
    files = again.Files(folder)
    sort_nodes(page, by)
    assert cells(page, "#nodes-table") == again.node_rows(files, by)
    terms = page.locator("#nodes-table .terms").inner_text()
    assert f"on {files.run['verdict']['minimality']['prompts']} held-out prompts" in terms
    assert "first n" in terms


def test_all_nodes_come_in_the_method_s_order(page: Any, folder: Path) -> None:
    files = again.Files(folder)
    sort_nodes(page, "order")
    page.locator("#nodes-table input").check()
    more = page.locator("#nodes-table > button")
    assert more.inner_text() == f"Show {len(files.order) - 60} more"
    more.click()
    assert page.locator("#nodes-table th[scope=row]").all_inner_texts() == files.order
    page.locator("#nodes-table input").uncheck()


def test_prompts_come_worst_first_and_wrong_ones_are_marked(page: Any, folder: Path) -> None:
    files = again.Files(folder)
    wanted = again.prompt_rows(files)
    more = page.locator("#prompts-list .scroll + button")
    assert more.inner_text() == f"Show {len(wanted) - 12} more"
    more.click()
    assert not more.is_visible()
    assert cells(page, "#prompts-list table.prompts") == wanted
    assert "wrong" in wanted[0][3]
    points = page.evaluate(f"{PLOT.format('prompts-list')}.data[0]")
    metrics = [prompt["metric"] for prompt in files.prompts["evaluate"]]
    assert all(map(close, points["x"], [m["model"] for m in metrics]))
    assert all(map(close, points["y"], [m["circuit"] for m in metrics]))
    wrong = sum(m["model"] <= 0 or m["circuit"] <= 0 for m in metrics)
    assert f"({wrong} of {len(metrics)})" in page.locator("#prompts-list").inner_text()


def test_scores_on_a_discovery_prompt(browser: Any, folder: Path) -> None:
    files = again.Files(folder)
    view = "#view&split=discover&prompt=3"
    page = open_page(browser, write_report([folder]), view=view)
    assert "Discovery prompt 4" in page.locator("#prompts-list .prompt").inner_text()
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    nodes = [node["site"] for node in files.circuit["nodes"]]
    scores = sorted(((files.examples[n][3], n) for n in nodes), key=lambda x: -abs(x[0]))
    wanted = [[name, again.num(value)] for value, name in scores]
    assert cells(page, "#prompts-list .prompt .two > div:last-child details") == wanted
    assert page.problems == []


@pytest.mark.parametrize("step", [0, 1])
def test_heatmap_has_signs_where_there_are_any(page: Any, folder: Path, step: int) -> None:
    files = again.Files(folder)
    page.locator("#heatmap-plot select").first.select_option(str(step))
    data = page.evaluate(f"{PLOT.format('heatmap-plot')}.data")
    wanted = again.heatmap(files, step)
    for shown, row in zip(data[0]["z"], wanted, strict=True):
        assert all(map(close, shown, row))
    largest = max(abs(v) for row in wanted for v in row if v is not None)
    negative = any(v < 0 for row in wanted for v in row if v is not None)
    assert negative == (step == 0)
    low = -largest if negative else 0.0
    assert close(data[0]["zmin"], low)
    assert close(data[0]["zmax"], largest)
    # The colour bar spans the same values in the same colours.
    bar = data[3]
    assert close(bar["z"][0][0], low)
    assert close(bar["z"][-1][0], largest)
    assert bar["colorscale"] == data[0]["colorscale"]
    axis = page.evaluate(f"{PLOT.format('heatmap-plot')}.layout.yaxis2")
    assert axis["title"]["text"] == ("score" if negative else "magnitude")
    assert all(map(close, axis["range"], (low, largest)))


def test_heatmap_sums_positions(browser: Any, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 4, 4, 6, ("IO", "S2", "end"))
    files, page = again.Files(folder), open_page(browser, write_report([folder]))
    for option, position in (("", None), ("1", "S2")):
        page.locator("#heatmap-plot select").nth(1).select_option(option)
        shown = page.evaluate(f"{PLOT.format('heatmap-plot')}.data[0].z")
        for row, wanted in zip(shown, again.heatmap(files, 0, position), strict=True):
            assert all(map(close, row, wanted))
    assert page.problems == []


def test_curves_name_their_prompts_and_none_shares_a_colour(page: Any, folder: Path) -> None:
    files = again.Files(folder)
    legend = page.locator("#faithfulness-plot .legend button").all_inner_texts()
    assert set(legend) == again.curve_names(files)
    traces = page.evaluate(
        f"{PLOT.format('faithfulness-plot')}.data.filter(t => t.fill !== 'toself')"
        ".map(t => [t.name, t.line.color, t.x.map(x => x * x), t.y])"
    )
    assert len({colour for _, colour, _, _ in traces}) == len(traces)
    by_name = {name: (x, y) for name, _, x, y in traces}
    curves = {"(discover)": files.run["curve"]}
    curves |= {f"{name} ablation": c for name, c in files.evaluation["curves"].items()}
    for part, curve in curves.items():
        name = next(n for n in by_name if part in n)
        x, y = by_name[name]
        assert all(map(close, x, curve["sizes"]))
        assert all(map(close, y, curve["faithfulness"]))
    x, y = by_name[f"this circuit, on {files.circuit['prompts']} held-out prompts"]
    assert close(x[0], len(files.circuit["nodes"]))
    assert y == [files.circuit["faithfulness"]]
    assert page.locator("#faith-out").inner_text() == again.num(files.circuit["faithfulness"])
    held_out = len(files.prompts["evaluate"])
    assert page.locator("#faith-prompts").inner_text() == f"on {held_out} held-out prompts"


def test_tests_of_the_evaluation(page: Any, folder: Path) -> None:
    files = again.Files(folder)
    assert cells(page, "#areas") == again.area_rows(files)
    knockouts = [
        [" ".join(k["removed"]), *map(again.num, (k["circuit"], k["model"]))]
        for k in files.evaluation["completeness"]["knockouts"]
    ]
    tables = {
        row.locator("summary").inner_text(): row
        for row in page.locator("#tests-plot details").all()
    }
    shown = cells(tables["Knockouts"], "table")
    assert [row[:3] for row in shown] == knockouts
    effects = sorted(files.circuit["nodes"], key=lambda node: -node["effect"])
    wanted = [[n["site"], again.num(n["effect"]) + again.interval(n["interval"])] for n in effects]
    assert cells(tables["Effect of each node: the values"], "table") == wanted
    kept = sorted(files.evaluation["stability"]["kept"].items(), key=lambda x: -x[1])
    wanted = [[site, again.num(share)] for site, share in kept]
    assert cells(tables["Share of resamples that choose a node: the values"], "table") == wanted


def test_rounds_say_their_prompts(page: Any, folder: Path) -> None:
    files = again.Files(folder)
    caption = page.locator("#heatmap-plot caption").inner_text()
    assert f"{len(files.prompts['discover'])} discovery prompts" in caption
    for i, shown in enumerate(cells(page, "#heatmap-plot table.settings")):
        step = files.run["rounds"][i]
        counts = [i + 1, len(step["selected"]), len(step["dropped"]), step["size"]]
        assert shown == [*map(str, counts), again.num(step["faithfulness"])]


def test_options_are_in_words(page: Any) -> None:
    text = page.locator("#reproduce table").first.inner_text()
    assert "null" not in text
    assert "{}" not in text
    rows = dict(cells(page.locator("#reproduce .two > div").first, "table"))
    assert rows["evaluate"] == "not set"
    assert rows["nested.a"] == "1, not set"
    assert rows["pairs"] == "yes"
    assert "options" not in rows
