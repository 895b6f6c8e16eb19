"""The graph of a report: edges, legends, pins and notes, and views that travel in the address."""

import json
import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from browser_pages import needs_browser, open_page
from oracles import report_figures as figures
from run_folders import WORDS, comparison, write_run
from safetensors.torch import load_file

from unweave.experiments.files import read_json, write_json
from unweave.report.html import LIMIT, write_report

pytestmark = needs_browser
NO_CLIPBOARD = """() => {
    navigator.clipboard.write = navigator.clipboard.writeText = () => Promise.reject();
}"""
BEFORE = "keys => keys.map(key => getComputedStyle(key, '::before').backgroundColor)"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "my run", edges=True)


@pytest.fixture(scope="module")
def report(run: Path) -> Path:
    return write_report([run])


def test_only_tested_edges_are_drawn_at_first(browser: Any, run: Path, report: Path) -> None:
    page = open_page(browser, report)
    edges = read_json(run / "circuit.json", "circuit")["edges"]
    assert page.locator("#graph .edge").count() == len(edges)
    titles = page.locator("#graph .edge title").all_text_contents()
    for edge in edges:
        source, target, branch = re.findall(r"^(.*)->([^<]*)(?:<(.)>)?$", edge["edge"])[0]
        told = f"{source} → {target}" + (f" ({branch})" if branch else "")
        found = next(title for title in titles if title.startswith(told + " "))
        sign = "+" if edge["effect"] > 0 else "−"
        assert f"effect {sign}" in found
    negative = sum(edge["effect"] < 0 for edge in edges)
    assert page.locator("#graph .edge.neg").count() == negative
    legend = page.locator("#graph-legend").inner_text()
    assert "q, k or v" in legend
    assert "answer" not in legend
    assert page.problems == []


def test_edges_end_at_the_query_key_or_value(browser: Any, run: Path, report: Path) -> None:
    page = open_page(browser, report)
    edges = [e["edge"] for e in read_json(run / "circuit.json", "circuit")["edges"]]
    pair = [e for e in edges if e.endswith(("<q>", "<v>"))]
    ends = {}
    for line in page.locator("#graph .edge").all():
        title = line.locator("title").text_content()
        ends[title.rpartition(" effect")[0]] = line.get_attribute("d").split(" ")[-1].split(",")
    head = pair[0].partition("->")[2].partition("<")[0]
    place = page.locator(f'.node[aria-label^="{head},"]').get_attribute("transform")
    x, y = map(float, re.findall(r"[\d.]+", place))
    q, v = (next(e for name, e in ends.items() if name.endswith(f"({b})")) for b in "qv")
    assert float(q[0]) < x < float(v[0])
    assert float(q[1]) > y
    assert float(v[1]) > y
    ports = page.locator(f'.node[aria-label^="{head},"] .port').all_text_contents()
    assert sorted(ports) == ["q", "v"]


def test_untested_relevance_is_a_toggle_with_its_units(browser: Any, report: Path) -> None:
    page = open_page(browser, report)
    tested = page.locator("#graph .edge").count()
    page.locator("#relevance").check()
    assert page.locator("#graph .edge.untested").count() > tested
    assert page.locator("#graph .edge.untested:not(.unsigned)").count() == 0  # a share has no sign
    legend = page.locator("#graph-legend").inner_text()
    assert "not tested" in legend
    assert "0 to 1" in legend
    page.locator("#measure").select_option("signed")
    legend = page.locator("#graph-legend").inner_text()
    assert "activations squared" in legend
    assert page.locator("#graph .edge.untested.neg").count()
    page.locator("#relevance").uncheck()
    assert page.locator("#graph .edge").count() == tested
    assert page.problems == []


def test_colours_follow_effect_or_score(browser: Any, run: Path, report: Path) -> None:
    page = open_page(browser, report)
    nodes = read_json(run / "circuit.json", "circuit")["nodes"]
    assert nodes
    for by in ("effect", "score"):
        page.locator("#size-by").select_option(by)
        for node in nodes:
            mark = page.locator(f'.node[aria-label^="{node["site"]},"]')
            wanted = "neg" if node[by] < 0 else "pos"
            assert wanted in mark.get_attribute("class").split()


def test_a_view_travels_in_the_address(browser: Any, run: Path, report: Path) -> None:
    page = open_page(browser, report)
    nodes = [node["site"] for node in read_json(run / "circuit.json", "circuit")["nodes"]]
    page.locator("#find").fill(nodes[3])
    page.locator("#find").press("Enter")
    assert page.locator("#node h3").inner_text() == nodes[3]
    page.locator("#node input.note").fill("moves names & more?")
    page.locator("#arrange").select_option("role")
    page.locator("#relevance").check()
    page.locator("#measure").select_option("ratio")
    page.locator("#count").fill("2")
    page.locator("nav a", has_text="Prompts").click()  # a section does not lose the view
    page.locator("#prompts-list th[scope=row] button").nth(1).click()
    chosen = page.locator("#prompts-list tr.chosen").get_attribute("data-index")
    again = open_page(browser, report, view=page.evaluate("location.hash"))
    assert again.locator("#node h3").inner_text() == nodes[3]
    assert again.locator("#arrange").input_value() == "role"
    assert again.locator("#measure").input_value() == "ratio"
    assert again.locator("#relevance").is_checked()
    assert again.locator("#node input.note").input_value() == "moves names & more?"
    assert again.locator("#pins").inner_text().endswith(f"{nodes[3]} moves names & more?")
    assert again.locator("#prompts-list tr.chosen").get_attribute("data-index") == chosen
    # A pinned node stays in view though the slider is below it.
    pinned = again.locator(".node.pinned")
    assert pinned.get_attribute("aria-label").startswith(nodes[3])
    assert pinned.is_visible()
    again.locator("#node .pinline input").first.uncheck()
    assert "pin=" not in again.evaluate("location.hash")
    assert page.problems == again.problems == []


def test_a_hostile_view_is_text(browser: Any, report: Path) -> None:
    view = "#view&node=<img+src=x>&pin=a4.h11+<img+src=x+onerror='window.hacked=1'>&n=1e9&size=x"
    page = open_page(browser, report, view=view)
    assert page.locator("main img").count() == 0
    assert page.evaluate("window.hacked") is None
    assert page.locator("#size-by").input_value() == "effect"
    assert page.problems == []


def test_roles_are_columns_and_labels(browser: Any, run: Path, report: Path) -> None:
    page = open_page(browser, report)
    nodes = read_json(run / "circuit.json", "circuit")["nodes"]
    first = next(node for node in nodes if node["roles"])
    label = page.locator(f'.node[aria-label^="{first["site"]},"] .role').text_content()
    assert label == first["roles"][0]
    page.locator("#arrange").select_option("role")
    columns = page.locator("#graph .scenery > text").all_text_contents()
    assert set(columns) >= {role for node in nodes for role in node["roles"]} | {"no role"}
    places: dict[str, list[float]] = {}
    for node in nodes:
        mark = page.locator(f'.node[aria-label^="{node["site"]},"]').get_attribute("transform")
        role = ", ".join(node["roles"])
        places.setdefault(role, []).append(float(re.findall(r"[\d.]+", mark)[0]))
    spans = sorted((min(xs), max(xs)) for xs in places.values())
    assert len(spans) > 1
    assert all(before[1] < after[0] for before, after in pairwise(spans))
    assert page.problems == []


@pytest.mark.parametrize(("form", "magic"), [("SVG", b"<svg"), ("PNG", b"\x89PNG")])
def test_the_graph_is_copied_or_saved(browser: Any, report: Path, form: str, magic: bytes) -> None:
    page = open_page(browser, report)
    # A page from disk may not use the clipboard here: it saves a file instead.
    page.evaluate(NO_CLIPBOARD)
    with page.expect_download() as download:
        page.locator("#picture-buttons button", has_text=f"Copy {form}").click()
    content = download.value.path().read_bytes()
    assert content.startswith(magic)
    assert len(content) > 5000
    if form == "SVG":
        assert b"var(--" not in content
        assert b"logits" in content
    assert page.problems == []


def percent1(value: float) -> str:
    return f"{100 * value:+.1f}%".replace("-", "−")


def test_paths_are_the_files_and_marked_in_the_graph(browser: Any, run: Path, report: Path) -> None:
    page = open_page(browser, report)
    record = read_json(run / "paths.json", "paths")
    rows, drawn = page.locator("#paths tbody tr"), page.locator("#graph .edge.path")
    assert rows.count() == len(record["paths"]) == 3
    for row, path in zip(rows.all(), record["paths"], strict=True):
        assert row.locator("button").inner_text() == " → ".join(path["path"])
        for key, ends in (("share", "interval"), ("measured", "measured_interval")):
            low, high = path[ends]
            within = percent1((high - low) / 2).lstrip("+")
            shown = row.locator(f"[data-key={key}]").inner_text()
            assert shown == f"{percent1(path[key])} ± {within}"
    left = page.locator("#paths .left").inner_text()
    assert percent1(record["left"]) in left
    assert percent1(record["left_after_all"]) in left
    # Pointing at a path shows it, choosing it keeps it; a node that no graph has is passed over.
    rows.nth(1).hover()
    assert drawn.count() == 3
    page.mouse.move(0, 0)
    assert drawn.count() == 0
    rows.nth(0).locator("button").click()
    page.mouse.move(0, 0)
    page.locator("#theme").focus()
    assert drawn.count() == 2
    rows.nth(2).hover()
    assert drawn.count() == 2
    again = open_page(browser, report, view=page.evaluate("location.hash"))
    assert again.locator("#graph .edge.path").count() == 2
    assert page.problems == []


def test_roles_are_colours_with_a_legend_that_filters(
    browser: Any, run: Path, report: Path
) -> None:
    page = open_page(browser, report)
    nodes = read_json(run / "circuit.json", "circuit")["nodes"]
    keys = page.locator("#graph-legend .roles button")
    first = [(node["roles"] or ["no role"])[0] for node in nodes]
    names = [*dict.fromkeys(role for role in first if role != "no role"), "no role"]
    assert keys.all_inner_texts() == [f"{name} ({first.count(name)})" for name in names]
    colour = "e => getComputedStyle(e.querySelector('.halo + *')).fill"
    by_role: dict[str, set[str]] = {}
    for node, role in zip(nodes, first, strict=True):
        mark = page.locator(f'.node[aria-label^="{node["site"]},"]')
        by_role.setdefault(role, set()).add(mark.evaluate(colour))
    assert all(len(colours) == 1 for colours in by_role.values())
    assert len(set.union(*by_role.values())) == len(by_role)
    shown = page.locator('.graph .node:not([display="none"])')
    keys.nth(0).click()
    assert shown.count() == len(nodes) - first.count(names[0])
    assert keys.nth(0).get_attribute("aria-pressed") == "false"
    again = open_page(browser, report, view=page.evaluate("location.hash"))
    hidden = again.locator('.graph .node:not([display="none"])').count()
    assert hidden == len(nodes) - first.count(names[0])
    page.locator("#colour-by").select_option("sign")
    assert page.locator(".node.by-role").count() == 0
    assert page.problems == []


def test_sentences_stand_in_the_panel_of_a_node(browser: Any, run: Path, report: Path) -> None:
    page = open_page(browser, report)
    nodes = read_json(run / "circuit.json", "circuit")["nodes"][:4]
    assert len(nodes) == 4
    for node in nodes:
        page.locator("#find").fill(node["site"])
        page.locator("#find").press("Enter")
        assert page.locator("#node .told").inner_text() == node["sentence"]
        role = ", ".join(node["roles"]) or "unclear"
        assert role in page.locator("#node .facts").inner_text()


def test_a_prompt_shows_its_words_effects_and_attention(
    browser: Any, run: Path, report: Path
) -> None:
    page = open_page(browser, report)
    prompts = read_json(run / "run.json", "run")["prompts"]["evaluate"]
    kept = load_file(run / "patterns.safetensors")
    page.locator("#find").fill("a0.h3")
    page.locator("#find").press("Enter")
    page.locator("#prompts-list th button", has_text=re.compile("^2$")).click()
    detail = page.locator("#prompts-list .prompt")
    scores = [figures.signed(w["score"], 2) for w in prompts[1]["words"]["words"]]
    assert detail.locator(".chip.word small").all_inner_texts() == scores
    values = page.evaluate("document.querySelector('#prompts-list .prompt .plot').data[0].x")
    wanted = sorted(prompts[1]["effects"].values(), key=abs, reverse=True)[:20]
    assert sorted(values) == pytest.approx(sorted(wanted))
    part = detail.locator(".attention-of-prompt")
    assert part.locator("select").first.input_value() == page.evaluate(
        "document.querySelector('.node.chosen').dataset.i"
    )
    row = kept["a0.h3"][1, 8].tolist()  # one byte a weight; of tokens that are there once
    key = max((k for k, w in enumerate(WORDS) if WORDS.count(w) == 1), key=lambda k: row[k])
    weight = figures.percent(round(255 * row[key]) / 255)
    title = f"{WORDS[8]} → {WORDS[key]}: {weight}"
    assert title in part.locator("rect.cell title").all_text_contents()
    page.locator("#prompts-list th button", has_text=re.compile("^9$")).click()
    told = detail.inner_text()
    assert "measured on 3 of 23 held-out prompts" in told
    assert "left out of the page, or was not kept" in told
    assert page.problems == []


def test_without_a_verdict_panels_say_how_to_get_it(browser: Any, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "my run", 4, 4, 5, checked=False, evaluated=False)
    page = open_page(browser, write_report([folder]))
    command = shlex.join(["unweave", "evaluate", str(folder)])
    for panel in ("verdict", "nodes", "tests", "random-circuits", "roc"):
        assert command in page.locator(f"#{panel}").inner_text(), panel
    assert "unweave discover" in page.locator("#prompts-list").inner_text()
    page.locator("#prompts-list select").select_option("discover")
    assert "unweave discover" not in page.locator("#prompts-list").inner_text()
    text = read_json(folder / "run.json", "run")["prompts"]["discover"][0]["clean"]
    words = shlex.join(["unweave", "attribute", "--model", "gpt2", text])
    assert words in page.locator("#prompts-list").inner_text()
    for card in page.locator("main section.card").all():
        assert len(card.inner_text().split()) > 5
    assert page.problems == []


def test_a_circuit_that_nobody_published_waits_for_no_evaluation(
    browser: Any, tmp_path: Path
) -> None:
    folder = write_run(tmp_path / "run", 4, 4, 5, evaluated=False)
    record = read_json(folder / "run.json", "run")
    write_json(folder / "run.json", record | {"published": False})
    told = open_page(browser, write_report([folder])).locator("#roc").inner_text()
    assert "No published circuit is known" in told
    assert "unweave evaluate" not in told


def test_twenty_lines_have_twenty_colours(browser: Any, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 4, 4, 5)
    record = comparison(20)
    line = record["figures"]["faithfulness_against_size"][0]
    many = [{**line, "method": f"m{i}", "line": f"m{i}"} for i in range(20)]
    record["figures"]["faithfulness_against_size"] = many
    write_json(tmp_path / "compared" / "compare.json", record)
    page = open_page(browser, write_report([folder, tmp_path / "compared"]))
    keys = page.locator("#faithfulness-plot .legend button")
    colours = keys.evaluate_all(BEFORE)
    assert len(set(colours)) == len(colours) >= 20
    drawn = page.evaluate(
        "document.querySelector('#faithfulness-plot .plot').data"
        ".filter(t => t.fill !== 'toself').map(t => t.line.color)"
    )
    assert len(set(drawn)) == len(drawn)
    assert page.problems == []


def test_a_large_run_stays_small_and_says_what_is_left_out(browser: Any, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 12, 12, 20, held_out=3000)
    report = write_report([folder])
    assert report.stat().st_size < LIMIT
    page = open_page(browser, report)
    told = page.locator("#left-out").inner_text()
    shown = len(
        json.loads(page.locator("#data").text_content())["runs"][0]["prompts"]["evaluate"]["shown"]
    )
    assert 12 <= shown < 3000
    assert f"the texts of {3000 - shown} of 3000 held-out prompts" in told
    # The worst prompts keep their texts, and every prompt its metrics.
    assert page.locator("#prompts-list table.prompts td.text .muted").count() == 0
    points = page.evaluate("document.querySelector('#prompts-list .plot').data[0].x.length")
    assert points == 3000
    assert page.problems == []
