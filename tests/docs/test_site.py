"""What the site is made with: formulas, lists from the source, pictures."""

import importlib.util
import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from snippets import ROOT

import unweave

SVG = "{http://www.w3.org/2000/svg}"


def script(name: str) -> ModuleType:
    """A script of docs/, which is not a package."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_formulas_become_mathml():
    page = r'<p><span class="arithmatex">\(\lvert a_s\rvert &lt; \beta\'\)</span></p>'
    page = page.replace(r"\'", "'")
    found = script("hooks").on_page_content(page)
    assert found.startswith("<p><math")
    assert "arithmatex" not in found
    assert "<msub><mi>a</mi><mi>s</mi></msub>" in found
    assert "&#x0003C;" in found
    shown = script("hooks").on_page_content('<div class="arithmatex">\\[a + b\\]</div>')
    assert shown.startswith('<div style="overflow-x: auto"><math')  # wider than a phone: it scrolls


def test_errors_are_listed_with_names_for_values():
    source = """
raise UnweaveError(f"{name!r} is not a site: expected {kinds[0]}" " or other")
raise UnweaveError(str(error))
raise ValueError("not ours, whatever it says")
raise NotFiniteError(f"score {name} is not finite")
BadLine(3, f"{len(first)} fields under {columns()} columns of {row.get('file')}")
_fail(value, where, "a list" if size is None else f"a list of {size}")
"""
    assert {*script("hooks").messages(source)} == {
        "‹name› is not a site: expected ‹kinds› or other",
        "score ‹name› is not finite",
        "‹number› fields under ‹columns› columns of ‹file›",
        "‹where› is ‹value›, expected a list",
        "‹where› is ‹value›, expected a list of ‹size›",
    }


def test_a_message_with_a_name_or_from_a_function_is_listed():
    source = """
def read(path):
    reason = "first"
    if path:
        reason = f"line {path.number} again: drop one"
    raise UnweaveError(reason)

def other():
    reason = "of another function"
    if bad := "a walrus: see here":
        raise UnweaveError(bad)
    raise UnweaveError(unknown_column(name))
"""
    assert {*script("hooks").messages(source)} == {
        "first",
        "line ‹number› again: drop one",
        "a walrus: see here",
        "unknown column ‹name›: ‹nearest›",  # of behaviours/rows.py
    }


@pytest.mark.parametrize(
    "text",
    [
        "is not a site: expected e.g. a9.h6",  # UnweaveError
        "is not on this machine and ‹why›: go online once",  # from a function
        "fields under ‹number› columns: quote texts with commas",  # with a name
        "- `unknown ‹noun› ‹name›: ‹nearest›`",
        "the ‹name› ablation is not finite at ‹point›: look for NaN",  # NotFiniteError
        "‹where› is ‹value›, expected a whole number",  # in a file of a run
        "expected an object {…} with clean, corrupted, …",  # in a task file
    ],
)
def test_every_kind_of_error_is_listed(text: str):
    listed = script("hooks").error_list()
    assert text in listed
    lines = [line for line in listed.splitlines() if line.startswith("- ")]
    assert len(lines) > 370


# What says what to do, or names what there is to choose from.
VERBS = """
    add ask begin call check choose compare continues? correct corrupt declare delete discover
    draw drop export fetch give install keep leave load look make move name pass pip put quote
    record remove rename repair report resume run save score set shorten split start take teach
    try use wait write
"""
REMEDY = re.compile(
    rf"\b({'|'.join(VERBS.split())})\b"
    r"|‹(nearest|close|able|remedy|_suggestion|tensors|_AGAIN|_GO_ON|install|_KINDS)›|unweave \w",
    re.IGNORECASE,
)
CHOICE = re.compile(r"expected|known|0–‹|it has ‹|such as ‹|\?$")
# The reason is the system's, or another message with a remedy of its own.
REASONS = {
    "‹file› cannot be read: ‹reason›",
    "‹name› cannot be looked up: ‹strerror›",
    "‹path› cannot be read: ‹strerror›",
    "‹source› cannot be read: ‹strerror›",
    "‹path› cannot be read: ‹error›",
    "cannot read the roles ‹path›: ‹strerror›",
    "nothing could be reproduced: ‹failed›",
    "task ‹name›, line ‹line›: ‹error›",
}


def test_every_error_has_a_remedy():
    """After what was found, past the first colon or comma: what was expected, or what to do."""
    listed = re.findall(r"^- `(.+)`$", script("hooks").error_list(), re.MULTILINE)
    without = set()
    for message in listed:
        rest = "".join(re.split(r"[:;,.] ", message, maxsplit=1)[1:])
        if not CHOICE.search(message) and not REMEDY.search(rest):
            without.add(message)
    assert without == REASONS


def test_every_public_name_is_in_the_reference():
    hooks = script("hooks")
    assert set(hooks.public_names()) == set(unweave.__all__) - {"__version__"}
    listed = hooks.on_page_markdown("<!-- public names -->")
    assert all(f"::: unweave.{name}" in listed.splitlines() for name in hooks.public_names())


@pytest.fixture
def drawn() -> ElementTree.Element:
    nodes = [
        {"site": "a0.h1", "score": 0.5, "roles": ["previous token"]},
        {"site": "a3.h2", "score": -2.0},
    ]
    circuit = {"nodes": nodes, "size": 2, "total": 8, "model": "a <b> model", "faithfulness": 0.98}
    prompt = {"clean": "A & B", "answers": [" B"], "distractors": [" A", " C", " D"]}
    feeder = {"source": "a0.h1", "share": -0.5}
    feeders = [feeder | {"input": "k", "held": True}, feeder | {"input": "v", "held": False}]
    explained = [
        {"node": "a0.h1", "writes": None, "feeders": []},
        {"node": "a3.h2", "writes": 0.4, "feeders": feeders},
    ]
    run = {"prompts": {"evaluate": [prompt]}, "explanation": {"nodes": explained}}
    text = script("pictures").circuit_svg(run, circuit)
    return ElementTree.fromstring(text)


def test_a_picture_shows_nodes_by_score_and_feeders_that_held(drawn: ElementTree.Element):
    circles = drawn.findall(f"{SVG}circle")
    assert [c.get("class") for c in circles] == ["node-up rim", "node-down rim"]
    small, large = (float(c.get("r", 0)) for c in circles)
    assert small < large
    low, high = (float(c.get("cy", 0)) for c in circles)
    assert high < low, "later layers are higher"
    to_answer, to_key = drawn.findall(f"{SVG}path")  # the smaller share is drawn first
    assert [to_answer.get("class"), to_key.get("class")] == ["up", "down"]
    widths = [float(line.get("stroke-width", 0)) for line in (to_answer, to_key)]
    assert widths == [pytest.approx(0.8 + 4.2 * share, abs=0.06) for share in (0.4, 0.5)]
    texts = [t.text for t in drawn.findall(f"{SVG}text")]
    assert {"a0.h1", "previous token", "a3.h2", "layer 3", "B, not A, …, D", "A & B …"} <= set(
        texts
    )
    assert "k" in texts
    assert "v" not in texts, "a feeder whose check did not hold is not drawn"


def test_names_in_a_picture_can_be_read_where_a_line_runs_through_them():
    """Every text has a rim in the colour of its background, light and dark."""
    for path in (ROOT / "docs" / "pictures").glob("*.svg"):
        style = str(ElementTree.parse(path).getroot().findtext(f"{SVG}style"))
        backs = re.findall(r"\.back { fill: (#\w+) }", style)
        assert len(backs) == 2, path.name
        assert re.findall(r"text { stroke: (#\w+)", style) == backs, path.name
        assert "paint-order: stroke" in style, path.name


def test_pictures_are_small():
    pictures = list((ROOT / "docs" / "pictures").iterdir())
    gallery = {f"gallery-{name}.svg" for name in stored_gallery()}
    assert {path.name for path in pictures} == {"circuit.svg", "report.png"} | gallery
    assert all(0 < path.stat().st_size <= 300_000 for path in pictures)


def stored_gallery() -> dict[str, Any]:
    return json.loads((ROOT / "docs" / "gallery.json").read_text(encoding="utf-8"))


def test_the_gallery_shows_what_its_script_makes():
    entries, stored = script("gallery").ENTRIES, stored_gallery()
    assert {"wired-induction", "wired-inhibition", "wired-relay"} <= set(stored) <= set(entries)
    page = script("hooks").on_page_markdown("<!-- gallery -->")
    for name, one in stored.items():
        assert one["command"] == f"unweave discover {' '.join(entries[name][0])}"
        assert f"## {name}" in page
        assert f"pictures/gallery-{name}.svg" in page
        assert one["command"] in page
    # Circuits of wired models are known: what is stored is what was wired.
    assert set(stored["wired-induction"]["nodes"]) == {"a1.h2", "a2.h0"}


def test_the_gallery_is_made_by_its_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What it stores is what is in the repository; the report is one file, which the page links."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs" / "pictures").mkdir(parents=True)
    shutil.copy(ROOT / "docs" / "pictures.py", tmp_path / "docs")
    gallery = script("gallery")
    monkeypatch.setattr(gallery, "DOCS", tmp_path / "docs")
    monkeypatch.setattr(gallery, "RUNS", tmp_path / "runs")
    gallery.main(["wired-relay"])
    (made,) = json.loads((tmp_path / "docs" / "gallery.json").read_text()).values()
    stored = stored_gallery()["wired-relay"]
    assert made == stored | {key: pytest.approx(made[key]) for key in ("faithfulness", "interval")}
    assert made["faithfulness"] == pytest.approx(stored["faithfulness"], abs=1e-3)
    assert (tmp_path / "docs" / "pictures" / "gallery-wired-relay.svg").exists()
    assert (tmp_path / "docs" / "gallery" / "wired-relay.html").stat().st_size > 1_000_000


def test_the_pages_that_everybody_looks_for_are_in_the_navigation():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    sections = yaml.safe_load(text)["nav"]
    named = dict(pair for section in sections for pair in _pages(section))
    assert {
        "Your first circuit": "first-circuit.md",
        "Read a report": "report.md",
        "Bring your own model": "own-model.md",
        "Bring your own task": "own-task.md",
        "Choose a score and a search": "scores-and-searches.md",
        "Edges and paths": "edges.md",
        "Explain one text": "explain.md",
        "GPUs and clusters": "gpus.md",
        "The method": "method.md",
        "Rules and what they promise": "rules.md",
        "The study behind the rules": "study.md",
        "Reproduce the paper": "reproduce.md",
        "Errors and gotchas": "errors.md",
        "API reference": "api.md",
        "Gallery": "gallery.md",
        "Changelog": "changelog.md",
    }.items() <= named.items()
    assert len([page for page in named.values() if page.endswith(".ipynb")]) == 3
    assert all((ROOT / "docs" / page).is_file() for page in named.values())


def _pages(section: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, found in section.items():
        if isinstance(found, str):
            yield name, found
        else:
            yield from (pair for one in found for pair in _pages(one))


def test_the_tutorial_has_pictures():
    text = (ROOT / "docs" / "first-circuit.md").read_text(encoding="utf-8")
    shown = re.findall(r"!\[[^\]]+\]\(pictures/([\w.-]+)\)", text)
    assert shown == ["gallery-wired-inhibition.svg", "circuit.svg", "report.png"]


@pytest.mark.parametrize("built", [True, False])
def test_the_gallery_says_where_a_report_is(
    built: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """`make docs` alone builds none: the page says how they are made."""
    (tmp_path / "docs" / "gallery").mkdir(parents=True)
    stored = json.dumps({"ioi": stored_gallery()["ioi"]})
    (tmp_path / "docs" / "gallery.json").write_text(stored, encoding="utf-8")
    if built:
        (tmp_path / "docs" / "gallery" / "ioi.html").touch()
    hooks = script("hooks")
    monkeypatch.setattr(hooks, "ROOT", tmp_path)
    page = hooks.gallery_list()
    assert ("[Open the report](gallery/ioi.html)" in page) == built
    assert ("`python docs/gallery.py ioi` makes its report" in page) != built


def test_the_page_of_rules_is_short():
    """Conclusions; what they are drawn from has its own page."""
    page = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    assert len(page.split()) < 1500
    assert "](study.md)" in page
