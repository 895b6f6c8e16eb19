"""How objects look in a notebook: what is shown is what they hold, and every text is escaped."""

import math
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

import unweave
from unweave.circuits import Circuit, CircuitEdge, EdgeScores, Evidence, NodeSummary, Scores
from unweave.decomposition.api import Decomposition
from unweave.display.graphs import graph_svg
from unweave.display.grids import Cell, grid_of
from unweave.evaluation.api import Evaluation, evaluate
from unweave.experiments.specification import Experiment, Specification
from unweave.model.loading import load
from unweave.model.model import Model

BAD = "<img src=x onerror=alert(1)>"
NAMES = ("a0.h0", "a0.h3", "a2.h1@end", "a2.h1@S2", "m1")


@pytest.fixture(scope="module")
def model() -> Model:
    return load("wired-induction")


@pytest.fixture(scope="module")
def scores() -> Scores:
    values = torch.tensor([0.5, -2.0, 0.25, 1.5, 0.0])
    examples = torch.stack([values - 1, values + 1], 1)
    return Scores(NAMES, values, examples, about={"method": BAD})


@pytest.fixture(scope="module")
def circuit() -> Circuit:
    evidence = {"a1.h2": Evidence(0.5, (0.4, 0.6), 1.0, "core")}
    return Circuit(
        ("a1.h2", "a2.h0"), (2.0, -1.0), 0.9, 1.0, 12, BAD, "a&b", "cdt", evidence=evidence
    )


@pytest.fixture(scope="module")
def decomposition(model: Model) -> Decomposition:
    texts = ["ant bee cat ant", "dog eel fox dog"]
    return unweave.decompose(model, texts, ["a0.h1", "a1.h2"], ["a2.h0", "logits"], "removal")


@pytest.fixture(scope="module")
def evaluation(model: Model) -> Evaluation:
    how = Specification("wired-induction", "wired-induction", prompts=8, held_out=8)
    experiment = Experiment.set_up(how, model)
    found = evaluate(
        experiment.held_out,
        ["a2.h0", "a1.h2"],
        ["a2.h0", "a1.h2"],
        known=experiment.known(),
        parts=("curve", "random_circuits"),
        draws=2,
    )
    return replace(found, about={"task": BAD})


@pytest.fixture(scope="module")
def attribution(model: Model) -> Any:
    return unweave.attribute(model, "ant bee cat ant", target="bee", against="cat")


ALL = ("model", "scores", "circuit", "decomposition", "evaluation", "attribution", "edges")


@pytest.fixture(scope="module")
def edges() -> EdgeScores:
    return EdgeScores(("input->m0", "a0.h0->a5.h1<q>"), torch.tensor([0.5, -3.0]), {"method": BAD})


@pytest.mark.parametrize("name", ALL)
def test_html_is_well_formed_and_escaped(name: str, request: pytest.FixtureRequest) -> None:
    text = request.getfixturevalue(name)._repr_html_()
    assert BAD not in text
    ElementTree.fromstring(f"<div>{text.replace('<br>', '<br/>')}</div>")  # every tag is closed


def test_a_model_shows_its_shape(model: Model) -> None:
    shown = replace(model, name=BAD)._repr_html_()
    assert BAD not in shown
    for text in ("3 × 4", "vocabulary", "14", "parameters"):
        assert text in shown


def test_scores_show_the_largest_first_and_a_cell_for_every_head(scores: Scores) -> None:
    shown = scores._repr_html_()
    rows = shown.partition("</svg>")[2]
    assert rows.index("a0.h3") < rows.index("a2.h1@S2") < rows.index("a0.h0")
    assert shown.count("<rect") == 4  # two positions of one head share a cell
    assert "layer 2, head 1: +1.5" in shown


def test_a_grid_keeps_the_largest_of_a_cell(scores: Scores) -> None:
    grid = grid_of(NAMES, scores.values.tolist())
    assert grid.rows == ("0", "1", "2")
    assert grid.columns == ("0", "1", "2", "3", "MLP")
    assert grid.values[Cell("2", "1")] == 1.5
    assert grid_of(["enc.a0.h0", "c0.h1", "a0.h0"], [1.0, 2.0, 3.0]).rows == ("enc.0", "0", "c0")
    assert grid_of(["embed"], [1.0]).rows == ()


def test_an_unknown_score_is_shown_as_a_dash(circuit: Circuit) -> None:
    shown = replace(circuit, scores=(math.nan, 1.0))._repr_html_()
    assert "nan" not in shown
    assert "–" in shown


def test_a_circuit_shows_measured_effects_and_roles_by_layer(circuit: Circuit) -> None:
    """A score only estimates the effect: it is shown where no effect was measured."""
    summaries = {"a2.h0": NodeSummary(("induction", "mover"), "It copies.")}
    evidence = {**circuit.evidence, "a2.h0": Evidence(2.0, (1.5, 2.5), 1.0, "supporting")}
    edges = (CircuitEdge("a1.h2->a2.h0<k>", 1.0), CircuitEdge("a2.h0->logits", 1.0))
    found = replace(circuit, evidence=evidence, summaries=summaries, edges=edges)
    assert (found.effects, replace(found, evidence={}).effects) == ((0.5, 2.0), circuit.scores)
    drawn = ElementTree.fromstring(re.findall(r"<svg.*?</svg>", found._repr_html_())[0])
    nodes = {node.findtext("title"): node for node in drawn.findall("circle")}
    assert list(nodes) == ["a1.h2: +0.5", "a2.h0: +2"]
    low, high = (float(node.get("cy", 0)) for node in nodes.values())
    assert high < low, "later layers are higher"
    assert [text.text for text in drawn.findall("text")] == ["layer 1", "layer 2", "a1.h2", "a2.h0"]
    (line,) = drawn.findall("line")  # the logits have no place
    first, second = nodes.values()
    assert [line.get(key) for key in ("x1", "y1", "x2", "y2")] == [
        node.get(key) for node in (first, second) for key in ("cx", "cy")
    ]
    table = found._repr_html_().partition("</svg>")[2]
    assert " ".join(re.sub(r"<[^>]*>", " ", table).split()) == (
        "a1.h2 +0.5 ± 0.10 core a2.h0 +2 ± 0.50 supporting induction, mover"
    )
    (markers,) = _traces(replace(found, edges=()).plot())
    assert markers.marker.size[1] > markers.marker.size[0]
    assert graph_svg(["embed"], [1.0]) == ""


def test_without_edges_lines_show_what_feeds_a_node(circuit: Circuit) -> None:
    told = {"a2.h0": NodeSummary(("induction",), "It copies.", "end", ("a1.h2", "a0.h1"))}
    found = Circuit.from_json(replace(circuit, summaries=told).to_json())
    assert found.summaries == told
    assert found._repr_html_().count("<line") == 1  # a0.h1 is not in the circuit
    assert circuit._repr_html_().count("<line") == 0
    lines, _ = _traces(found.plot())
    assert (list(lines.x), list(lines.y)) == (["2", "0", None], ["1", "2", None])


def test_a_name_is_not_broken_on_a_narrow_screen(scores: Scores) -> None:
    assert '<code style="white-space:nowrap">a0.h3</code>' in scores._repr_html_()


def test_a_decomposition_shows_the_shares(decomposition: Decomposition) -> None:
    shown = decomposition._repr_html_()
    share = float(decomposition.relevance("a2.h0", "share")[1].mean())
    assert share > 0
    assert f'<td style="text-align:left">{share:.3f}</td>' in shown


def test_an_evaluation_shows_faithfulness_and_chance(evaluation: Evaluation) -> None:
    shown = evaluation._repr_html_()
    value = evaluation.faithfulness["mean"].value
    assert f"{value:.3f}" in shown
    assert "random circuits" in shown
    assert "published" in shown


@pytest.mark.parametrize(
    "name", ["scores", "circuit", "decomposition", "evaluation", "attribution"]
)
def test_a_figure_is_plotlys_and_escaped(name: str, request: pytest.FixtureRequest) -> None:
    from plotly.graph_objects import Figure

    figure = request.getfixturevalue(name).plot()
    assert isinstance(figure, Figure)
    text = str(figure.to_json())
    assert BAD not in text.replace("\\u003c", "<").replace("\\u003e", ">")
    assert _traces(figure)


def _traces(figure: Any) -> tuple[Any, ...]:
    """Plotly's stubs do not know what a trace holds."""
    return figure.data


def test_figures_hold_the_values(scores: Scores, evaluation: Evaluation, attribution: Any) -> None:
    (heat,) = _traces(scores.plot())
    assert [list(row) for row in heat.z] == [
        [0.5, None, None, -2.0, None],
        [None, None, None, None, 0.0],
        [None, 1.5, None, None, None],
    ]
    line = _traces(evaluation.plot())[0]
    assert tuple(line.x) == evaluation.curves["mean"].sizes
    assert tuple(line.y) == evaluation.curves["mean"].faithfulness
    (bar,) = _traces(attribution.plot())
    assert tuple(bar.y) == attribution.scores


def test_a_circuit_of_edges_shows_its_edges(circuit: Circuit) -> None:
    pytest.importorskip("pandas")
    names = ("a1.h2->a2.h0<k>", "a1.h2->a2.h0<v>", "input->a1.h2<q>", "a2.h0->logits")
    edges = tuple(CircuitEdge(name, 1.0, 0.5, (0.4, 0.6)) for name in names)
    found = replace(circuit, edges=edges, edges_total=193)
    rows = found.to_frame()
    assert list(rows["edge"]) == list(names)
    assert list(rows["source"]) == ["a1.h2", "a1.h2", "input", "a2.h0"]
    assert list(rows["target"]) == ["a2.h0<k>", "a2.h0<v>", "a1.h2<q>", "logits"]
    assert list(rows.iloc[0])[3:] == [1.0, 0.5, 0.4, 0.6]
    lines, markers = _traces(found.plot())
    # Two edges between the same nodes are one line; the input and the logits have no place.
    assert (list(lines.x), list(lines.y)) == (["2", "0", None], ["1", "2", None])
    assert lines.mode == "lines"
    assert len(markers.x) == 2
    assert "4 of 193 edges among 2 nodes" in str(found.plot().layout.title.text)
    assert len(_traces(circuit.plot())) == 1


def test_frames(
    scores: Scores,
    edges: EdgeScores,
    circuit: Circuit,
    decomposition: Decomposition,
    evaluation: Evaluation,
    attribution: Any,
) -> None:
    pytest.importorskip("pandas")
    found = scores.to_frame()
    assert list(found["source"]) == scores.ranking()
    assert list(found["score"]) == [scores[name] for name in scores.ranking()]
    assert list(found["standard_deviation"]) == [1.0] * 5
    assert list(edges.to_frame()["target"]) == ["a5.h1<q>", "m0"]
    assert list(circuit.to_frame()["role"].dropna()) == []
    told = replace(circuit, summaries={"a1.h2": NodeSummary(("induction",), "It looks.")})
    assert list(told.to_frame()["role"].dropna()) == ["induction"]
    groups = circuit.to_frame()["group"]
    assert (groups[0], bool(groups.isna()[1])) == ("core", True)
    whole = decomposition.to_frame()
    assert len(whole) == 2 * 2 * 2
    one = whole[(whole.source == "a1.h2") & (whole.target == "a2.h0") & (whole.example == 1)]
    assert one.ratio.item() == pytest.approx(float(decomposition.relevance("a2.h0")[1, 1]))
    curve = evaluation.to_frame()
    assert list(curve["faithfulness"]) == list(evaluation.curves["mean"].faithfulness)
    assert list(attribution.to_frame()["word"]) == [word.text for word in attribution.words]


def test_without_pandas_the_error_says_what_to_install(
    scores: Scores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(unweave.UnweaveError, match=r"pip install 'unweave\[pandas\]'"):
        scores.to_frame()


class Screen:
    """A stand-in for what Jupyter gives: the texts that a cell shows."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def display(self, what: Any, display_id: bool = False) -> "Screen":
        self.update(what)
        return self

    def update(self, what: Any) -> None:
        self.shown.append(what.data)


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], Screen]:
    import IPython.display
    import rich.console

    from unweave import progress

    def fake(notebook: bool) -> Screen:
        found = Screen()
        monkeypatch.setattr(progress, "_DELAY", -1.0)
        monkeypatch.setattr(IPython.display, "display", found.display)
        monkeypatch.setattr(rich.console, "_is_jupyter", lambda: notebook)
        return found

    return fake


def test_a_progress_bar_in_a_notebook(screen: Callable[[bool], Screen]) -> None:
    from unweave.progress import progress, silent

    found = screen(True)
    with progress(BAD, 4) as advance:
        for _ in range(4):
            advance(1)
    assert BAD not in "".join(found.shown)
    assert "100%" in found.shown[-2]
    assert found.shown[-1] == ""  # it goes away
    before = len(found.shown)
    with silent(), progress("quiet", 4) as advance:
        advance(4)
    assert len(found.shown) == before


def test_no_progress_bar_where_output_is_a_file(screen: Callable[[bool], Screen]) -> None:
    from unweave.progress import progress

    found = screen(False)
    with progress("work", 4) as advance:
        advance(4)
    assert found.shown == []
