"""Static figures."""

import sys
from pathlib import Path

import pytest
from run_folders import comparison, write_run

from unweave import cli
from unweave.experiments.files import write_json

MAGIC = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


@pytest.mark.parametrize("suffix", MAGIC)
@pytest.mark.parametrize("figure", ["roc", "faithfulness", "chance", "heatmap", "circuit"])
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
