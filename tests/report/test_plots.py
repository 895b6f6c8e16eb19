"""Static figures."""

import re
import sys
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from oracles.report_figures import Files, heatmap
from run_folders import comparison, write_run

from unweave import cli
from unweave.experiments.files import write_json
from unweave.report.folder import read_shown
from unweave.report.plots import FIGURES, PlotOptions

MAGIC = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


@pytest.mark.parametrize("suffix", MAGIC)
@pytest.mark.parametrize("figure", ["roc", "faithfulness", "random_circuits", "heatmap", "circuit"])
def test_every_figure_in_every_format(tmp_path: Path, figure: str, suffix: str) -> None:
    run, out = write_run(tmp_path / "run", 4, 4, 6), tmp_path / f"x.{suffix}"
    write_json(tmp_path / "cmp" / "compare.json", comparison(20))
    more = ["--compare", str(tmp_path / "cmp")]
    assert cli.main(["plot", str(run), "--figure", figure, "-o", str(out), *more]) == 0
    assert out.read_bytes().startswith(MAGIC[suffix])


@pytest.mark.parametrize("figure", ["faithfulness", "heatmap", "circuit"])
def test_hostile_and_positions(tmp_path: Path, figure: str) -> None:
    run = write_run(tmp_path / "run", 4, 4, 6, ("IO", "$x", "end"), hostile=True)
    out = tmp_path / "x.svg"
    assert cli.main(["plot", str(run), "--figure", figure, "-o", str(out)]) == 0
    assert "<script" not in out.read_text()


def test_the_same_run_gives_the_same_file(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 4, 4, 6)
    for name in ("a.svg", "b.svg"):
        cli.main(["plot", str(run), "--figure", "faithfulness", "-o", str(tmp_path / name)])
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--figure", "rocs", "-o", "x.png"], "did you mean roc"),
        (["--figure", "roc", "-o", "x.gif"], ".svg"),
        (["--figure", "roc", "-o", "x.png"], "unweave evaluate"),
        (["--figure", "heatmap", "-o", "x.png", "--position", "S2"], "no position 'S2'"),
        (["--figure", "heatmap", "-o", "x.png", "--round", "9"], "2 rounds"),
    ],
)
def test_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], args: list[str], told: str
) -> None:
    run = write_run(tmp_path / "run", 2, 2, 2, evaluated=False)
    assert cli.main(["plot", str(run), *args]) == 2
    assert told in capsys.readouterr().err


def test_without_matplotlib_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", 2, 2, 2)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli.main(["plot", str(run), "-f", "roc", "-o", str(tmp_path / "x.png")]) == 2
    assert "pip install 'unweave[plots]'" in capsys.readouterr().err


@pytest.mark.parametrize("round_", [1, 2])
def test_heatmap_has_signs_where_there_are_any(tmp_path: Path, round_: int) -> None:
    folder = write_run(tmp_path / "run", 4, 4, 6)
    axes = Figure().add_subplot()
    FIGURES["heatmap"][0](read_shown(folder), axes, PlotOptions(round=round_))
    drawn, wanted = axes.images[0], heatmap(Files(folder), round_ - 1)
    array = drawn.get_array()
    assert array is not None
    for shown, row in zip(array.tolist(), wanted, strict=True):
        assert shown == pytest.approx(row)
    values = [v for row in wanted for v in row if v is not None]
    largest = max(map(abs, values))
    assert drawn.get_clim() == pytest.approx((-largest if round_ == 1 else 0.0, largest))
    assert (min(values) < 0) == (round_ == 1)
    label = axes.figure.axes[1].get_ylabel()
    assert label == ("score (logit difference)" if round_ == 1 else "relevance (magnitude)")


def test_only_tested_edges_are_drawn_unless_asked(tmp_path: Path) -> None:
    run = read_shown(write_run(tmp_path / "run", 4, 4, 6, edges=True))
    counts = []
    for relevance in (False, True):
        axes = Figure().add_subplot()
        FIGURES["circuit"][0](run, axes, PlotOptions(relevance=relevance))
        counts.append(len(axes.patches))
    between = [
        e for e in run.found["edges"] if "input" not in e["edge"] and "logits" not in e["edge"]
    ]
    assert counts[0] == len(between)
    assert counts[1] > counts[0]


def test_lines_differ_by_colour_or_dashes(tmp_path: Path) -> None:
    run, out = write_run(tmp_path / "run", 4, 4, 6), tmp_path / "x.svg"
    record = comparison(20)
    line = record["figures"]["faithfulness_against_size"][0]
    many = [{**line, "method": f"m{i}", "line": f"m{i}"} for i in range(20)]
    record["figures"]["faithfulness_against_size"] = many
    write_json(tmp_path / "cmp" / "compare.json", record)
    more = ["--compare", str(tmp_path / "cmp"), "-o", str(out), "--width", "9"]
    assert cli.main(["plot", str(run), "--figure", "faithfulness", *more]) == 0
    styles = re.findall(
        r'id="line2d_\d+">\s*<path d="[^"]*" clip-path[^>]*style="([^"]*)"', out.read_text()
    )
    assert len(styles) >= 20
    assert len(set(styles)) == len(styles)
