"""report.html in a real browser: Debian's chromium, driven by playwright."""

import re
import time
from pathlib import Path
from typing import Any

import pytest
from browser_pages import needs_browser, open_page
from plotly.offline import get_plotlyjs
from run_folders import HOSTILE, comparison, write_run

from unweave import cli
from unweave.experiments.files import read_json, write_json
from unweave.report.html import write_report
from unweave.report.single_file import library_styles

HEATMAP = "document.querySelector('#heatmap-plot .plot')"
DRAWN = (
    *("verdict-plot", "heatmap-plot", "faithfulness-plot", "roc-plot", "runtime-plot"),
    *("random-circuits-plot", "tests-plot", "prompts-list"),
)
TABLED = ("heatmap-plot", "faithfulness-plot", "roc-plot", "runtime-plot", "random-circuits-plot")
PANELS = ("graph", *DRAWN)
COLOURS = """() => [
    [document.body, "backgroundColor"],
    [document.querySelector("#faithfulness-plot .main-svg"), "backgroundColor"],
    [document.querySelector("#faithfulness-plot .xtick text"), "fill"],
    [document.querySelector("#faithfulness-plot path.js-line"), "stroke"],
].map(([element, name]) => getComputedStyle(element)[name])"""


def shown(page: Any) -> int:
    return page.locator('.graph .node:not([display="none"])').count()


def marker(page: Any) -> str:
    """Where the moving marker of the curves stands: the last shape of the figure."""
    return page.locator("#faithfulness-plot .shapelayer path").last.get_attribute("d")


def lines(page: Any, panel: str) -> int:
    """Lines that plotly drew in a panel."""
    return page.locator(f"#{panel} .scatterlayer path.js-line").count()


def click_cell(page: Any, row: int, column: int) -> None:
    """Clicks one cell of the heatmap, which is one image."""
    area = page.locator("#heatmap-plot .nsewdrag").first
    area.scroll_into_view_if_needed()
    box, grid = area.bounding_box(), page.evaluate(f"{HEATMAP}.data[0].z.map(r => r.length)")
    x = box["x"] + (column + 0.5) / grid[0] * box["width"]
    y = box["y"] + (1 - (row + 0.5) / len(grid)) * box["height"]
    page.mouse.move(x, y)
    page.mouse.click(x, y)


def frames(page: Any, trace: int) -> int:
    """How many frames a trace of the heatmap has: each ends in a gap."""
    return page.evaluate(f"{HEATMAP}.data[{trace}].x.filter(x => x === null).length")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_json(folder / "compared" / "compare.json", comparison(156))
    return write_report([write_run(folder / "run"), folder / "compared"])


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_panel_draws(browser: Any, report: Path, width: int, scheme: str) -> None:
    page = open_page(browser, report, width, scheme)
    for panel in PANELS:
        assert page.locator(f"#{panel} svg").count(), panel
    for panel in DRAWN:
        assert page.locator(f"#{panel} .plot[aria-label] .main-svg").count(), panel
    for panel in TABLED:
        assert page.locator(f"#{panel} details table").count(), panel
    assert lines(page, "faithfulness-plot") == 5 + 2  # and the borders of two bands
    assert page.locator("#heatmap-plot .heatmaplayer image").count() == 2  # and its colour bar
    assert page.locator("#runtime-plot .barlayer .point").count() == 3
    assert page.locator("#prompts-list .chip.named").count()
    assert page.locator("#words-list .chip.word").count() == 11
    box = page.locator("#theme").bounding_box()
    assert 0 <= box["x"] <= box["x"] + box["width"] <= width
    assert "unweave discover ioi" in page.locator("#command").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert "eap" in page.locator("#faithfulness-plot .legend").inner_text()
    assert page.problems == []


@needs_browser
def test_slider_moves_nodes_and_faithfulness(browser: Any, report: Path) -> None:
    page = open_page(browser, report)
    assert shown(page) == 14
    assert page.locator("#faith-out").inner_text() == "0.97"
    place = marker(page)
    page.locator("#count").focus()
    for _ in range(4):
        page.keyboard.press("ArrowLeft")
    assert shown(page) == 10
    assert page.locator("#count-out").inner_text() == "10 of 156"
    assert page.locator("#faith-out").inner_text() not in ("0.97", "–")
    assert marker(page) != place
    page.locator("#count-reset").click()
    assert shown(page) == 14
    assert marker(page) == place


@needs_browser
def test_legend_hides_lines_and_the_scale_can_be_changed(browser: Any, report: Path) -> None:
    page = open_page(browser, report)
    before = lines(page, "faithfulness-plot")
    key = page.locator("#faithfulness-plot .legend button", has_text="eap")
    key.focus()
    page.keyboard.press("Enter")
    assert key.get_attribute("aria-pressed") == "false"
    assert lines(page, "faithfulness-plot") == before - 1
    key.click()
    assert lines(page, "faithfulness-plot") == before
    place = marker(page)
    page.locator("#faithfulness-plot input").uncheck()
    assert marker(page) != place
    assert page.problems == []


@needs_browser
def test_click_and_keyboard_choose_nodes(browser: Any, report: Path) -> None:
    page = open_page(browser, report)
    aside = page.locator("#node")
    assert "No node chosen" in aside.inner_text()
    head = page.locator('.node[aria-label^="a"]').first
    head.click(force=True)
    name = aside.locator("h3").inner_text()
    assert head.get_attribute("aria-label").startswith(name)
    assert "Strongest inputs" in aside.inner_text()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert aside.locator("h3").inner_text() != name
    # A neighbour that the slider hides is brought in.
    aside.locator("button.line").last.click()
    assert page.locator(".node.chosen").count() == 1
    page.locator("#node button", has_text="Close").click()
    assert "No node chosen" in aside.inner_text()
    assert page.problems == []


@needs_browser
def test_attention_of_a_head_is_shown_with_its_tokens(browser: Any, report: Path) -> None:
    page = open_page(browser, report)
    click_cell(page, 0, 3)  # layer 0, whose patterns were kept
    assert page.locator("#node h3").inner_text() == "a0.h3"
    assert page.locator("#node .pattern rect.cell").count() > 10
    assert page.locator("#graph path.look").count()
    before = page.locator("#node .muted").first.inner_text()
    page.locator("#node select").select_option("3")
    assert page.locator("#node .muted").first.inner_text() != before
    # Another held-out prompt whose attention was kept, and one without.
    assert "held-out prompt 1" in page.locator("#node").inner_text()
    page.locator("#prompts-list th button", has_text=re.compile("^2$")).click()
    assert "held-out prompt 2" in page.locator("#node").inner_text()
    page.locator("#prompts-list th button", has_text=re.compile("^9$")).click()
    assert "of prompt 9 none was kept" in page.locator("#node").inner_text()
    assert page.problems == []


@needs_browser
def test_heatmap_by_round_and_theme_toggle(browser: Any, report: Path) -> None:
    page = open_page(browser, report)
    assert page.locator("#heatmap-plot select").first.locator("option").count() == 2
    page.locator("#heatmap-plot select").first.select_option("1")
    assert (frames(page, 1), frames(page, 2)) == (14, 14)  # joined, and dropped again
    light = colours(page)
    page.locator("#theme").click()
    dark = colours(page)
    assert light
    assert all(a != b for a, b in zip(light, dark, strict=True))
    page.locator("#theme").click()
    assert colours(page) == light
    assert page.problems == []


def colours(page: Any) -> list[str]:
    """Of the paper, and of a figure: its paper, its letters and a line."""
    return page.evaluate(COLOURS)


@needs_browser
def test_figures_follow_the_scheme_of_the_system(browser: Any, report: Path) -> None:
    page = open_page(browser, report)
    light = colours(page)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"old => ({COLOURS})().every((now, i) => now !== old[i])", arg=light)
    assert page.problems == []


@needs_browser
@pytest.mark.parametrize("form", ["PNG", "SVG"])
def test_a_figure_is_saved_from_a_page_on_disk(browser: Any, report: Path, form: str) -> None:
    page = open_page(browser, report)
    page.locator("#faithfulness-plot .plot").hover()
    with page.expect_download() as download:
        page.locator(f"#faithfulness-plot [aria-label='Save as {form}']").click()
    assert download.value.suggested_filename == f"unweave.{form.lower()}"
    assert download.value.path().stat().st_size > 10_000
    assert page.problems == []


@needs_browser
def test_print_shows_light_paper(browser: Any, report: Path) -> None:
    page = open_page(browser, report, scheme="dark")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("nav").is_visible()
    white = "every((now) => now === 'rgb(255, 255, 255)')"
    page.wait_for_function(f"() => ({COLOURS})().slice(0, 2).{white}")
    # On paper, figures are drawn anew as wide as it is; afterwards they are as before.
    page = open_page(browser, report, scheme="dark")
    before, width = colours(page), "document.querySelector('#faithfulness-plot .plot').layout.width"
    wide = page.evaluate(width)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(width) == 640 < wide
    assert colours(page)[1] == "rgb(255, 255, 255)"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert (colours(page), page.evaluate(width)) == (before, wide)
    assert page.pdf().startswith(b"%PDF")
    assert page.problems == []


@needs_browser
@pytest.mark.parametrize("size", [9, 0])
def test_hostile_run_runs_nothing(browser: Any, tmp_path: Path, size: int) -> None:
    folder = write_run(
        tmp_path / "<b>run", 4, 4, size, ("IO", "<b>", "end"), hostile=True, evaluated=size > 0
    )
    page = open_page(browser, write_report([folder]))
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img, main script, h1 b, svg b").count() == 0
    assert HOSTILE in page.locator("h1").inner_text()
    assert HOSTILE in page.locator("#prompts-list").inner_text()
    assert HOSTILE[:30] in page.locator("#words-list").inner_text()
    page.locator("#count").fill("8")
    page.locator(".node").nth(3).click(force=True)
    assert page.problems == []


MARKUP = [
    "<b>bold</b> %{x} $x$",
    '<a href="javascript:window.hacked=1">link</a>',
    "&lt;i&gt; &amp; <br>",
    HOSTILE,
]


@needs_browser
@pytest.mark.parametrize("name", MARKUP)
def test_plotly_shows_markup_as_text(browser: Any, tmp_path: Path, name: str) -> None:
    folder = write_run(tmp_path / "run", 4, 4, 6, ("IO", "<b>x</b>", "end"), method=name)
    record = read_json(folder / "run.json", "run.json")
    write_json(folder / "run.json", {**record, "seconds": {name: 1.0, "circuit": 2.0}})
    write_json(tmp_path / "compared" / "compare.json", comparison(60, name))
    page = open_page(browser, write_report([folder, tmp_path / "compared"]))
    assert name[:23] in page.locator("#runtime-plot .ytick text").first.text_content()
    assert name[:40] in page.locator("#roc-plot .legend").last.inner_text()
    assert "<b>x</b>" in page.locator("#heatmap-plot select").nth(1).inner_text()
    page.locator("#roc-plot .plot").last.locator(".point").first.hover(force=True)
    label = page.locator("#roc-plot .hoverlayer .hovertext")
    assert name[:40] in label.last.text_content()
    nothing = "main img, main script, .plot a[href], .plot tspan[style], h1 b, svg b"
    assert page.locator(nothing).count() == 0
    assert page.evaluate("window.hacked") is None
    assert page.problems == []
    other = write_run(tmp_path / name.replace("/", "|"), 4, 4, 6, method=name)
    page = open_page(browser, write_report([folder, other]))
    assert name[:30] in page.locator("#curves .legend").inner_text()
    assert lines(page, "curves") == 2
    assert page.locator(nothing).count() == 0
    assert page.evaluate("window.hacked") is None
    assert page.problems == []


@needs_browser
def test_texts_and_circuit_are_there_long_before_the_figures(browser: Any, report: Path) -> None:
    """As a share of the time until all is drawn: seconds are the machine's."""
    assert report.stat().st_size < 6_000_000
    shares = []
    for _ in range(3):
        start = time.perf_counter()
        page = open_page(browser, report)
        drawn = time.perf_counter() - start
        loaded = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd") / 1000
        shares.append(loaded / drawn)
        page.context.close()
    assert min(shares) < 0.8


@needs_browser
def test_two_thousand_nodes_stay_usable(browser: Any, tmp_path: Path) -> None:
    positions = ("IO", "S1", "S1+1", "S2", "end", "14", "15", "16")
    report = write_report([write_run(tmp_path / "run", 28, 9, 40, positions, mlps=False)])
    assert report.stat().st_size < 6_000_000
    page = open_page(browser, report)
    move = """n => { const s = document.getElementById("count"); const t = performance.now();
        s.value = n; s.dispatchEvent(new Event("input")); document.body.offsetHeight;
        return performance.now() - t; }"""
    page.evaluate(move, 2016)
    assert shown(page) == 2016
    assert min(page.evaluate(move, n) for n in (2000, 1500, 1000)) < 500
    page.locator("#heatmap-plot select").nth(1).select_option("3")
    assert page.problems == []


@needs_browser
def test_runs_side_by_side(browser: Any, tmp_path: Path) -> None:
    first, second = write_run(tmp_path / "a"), write_run(tmp_path / "b", seed=0, size=10)
    third = write_run(
        tmp_path / "c", 28, 9, 40, ("IO", "S1", "S1+1", "S2", "end", "14", "15", "16")
    )
    assert write_report([first, second, third]).stat().st_size < 6_000_000
    page = open_page(browser, write_report([first, second]))
    assert page.locator("#circuits svg").count() == 2
    assert lines(page, "curves") == 2
    assert "10 of 14 nodes are in every circuit" in page.locator("#shared").inner_text()
    page.locator("#shared select").select_option("2")
    assert page.locator("#shared tbody tr").count() == 4
    assert page.locator(".node.shared").count() == 20
    assert page.problems == []


def test_report_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", 3, 2, 4)
    assert cli.main(["report", str(run)]) == 0
    assert capsys.readouterr().out.strip() == str(run / "report.html")
    assert cli.main(["report", str(tmp_path / "none")]) == 2
    assert "unweave discover" in capsys.readouterr().err
    (run / "run.json").write_text('{"schema_version": 99}')
    assert cli.main(["report", str(run)]) == 2
    assert "schema_version 99" in capsys.readouterr().err


def test_page_holds_no_markup_of_the_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 4, 4, 5, hostile=True)
    text = write_report([folder]).read_text("utf-8")
    assert text.count(get_plotlyjs()) == 1
    text = text.replace(get_plotlyjs(), "")
    assert HOSTILE not in text
    assert text.count("<script") == 3
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert "unsafe" not in policy[1]
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text


@needs_browser
def test_real_run_of_smollm2(browser: Any, tmp_path: Path) -> None:
    run, few = tmp_path / "run", ["-n", "2", "--held-out", "2", "-o", "pairs=true", "--no-explain"]
    quick = ["--score", "decomposition", "--search", "top", "-o", "size=12"]
    assert cli.main(["discover", "ioi", *few, *quick, "--out", str(run), "-q"]) == 0
    report = run / "report.html"
    assert report.stat().st_size < 6_000_000
    page = open_page(browser, report)
    assert shown(page) == 12
    page.locator(".node circle").first.click(force=True)
    assert page.locator("#node .pattern rect.cell").count() > 10
    assert page.locator("#node button.line").count() == 12
    for panel in PANELS:
        assert page.locator(f"#{panel} > *").count(), panel
    assert page.problems == []
    for form in ("eap-ig", "neuronpedia", "csv"):
        assert cli.main(["export", str(run), "--format", form]) == 0


@pytest.mark.parametrize("quote", ["'", '"', "`"])
def test_the_sheet_of_the_library_is_allowed_however_it_is_quoted(quote: str) -> None:
    """plotly 7.0 writes it between backticks, 7.1 between apostrophes."""
    sheet = ".maplibregl-map{content:" + ("'a'" if quote != "'" else '"a"') + "}"
    library = f"x.textContent={quote}{sheet}{quote},y.textContent='another'"
    assert library_styles(library) == ["", sheet]
