"""`unweave mib` and `unweave compare --protocol mib`: what they print and write."""

import json
from pathlib import Path

import pytest

from unweave import cli

NAME = "wired-induction"
FEW = ["-n", "4", "--held-out", "4", "--methods", "eap,eap-ig:steps=2"]


def test_a_table_and_a_submission(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["mib", "run", NAME, *FEW, "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    for text in ("CPR", "CMD", "eap-ig:steps=2", "counterfactual"):
        assert text in shown.out
    assert f"{NAME}, eap, seed 0" in shown.err
    record = json.loads((tmp_path / "mib.json").read_text())
    assert [row["method"] for row in record["summary"]] == ["eap", "eap-ig:steps=2"]
    assert cli.main(["mib", "pack", str(tmp_path), "--method", "eap"]) == 0
    path = tmp_path / "submission" / "node" / f"{NAME}_{NAME}" / "importances.json"
    assert capsys.readouterr().out.strip() == str(path)
    assert json.loads(path.read_text())["nodes"]["input"]["score"] != 0
    assert cli.main(["mib", "pack", str(tmp_path)]) == 2
    assert "name one with --method" in capsys.readouterr().err


def test_compare_by_the_protocol_is_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for number, how in enumerate((["compare", "--protocol", "mib"], ["mib", "run"])):
        out = ["--out", str(tmp_path / str(number)), "--json", "-q"]
        assert cli.main([*how, NAME, *FEW, *out]) == 0
        found.append(json.loads(capsys.readouterr().out)["summary"])
    for ours, theirs in zip(*found, strict=True):
        assert (ours["cpr"], ours["cmd"]) == (theirs["cpr"], theirs["cmd"])


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["mib", "run", NAME, "--level", "nodes"], "unknown level 'nodes'"),
        (["mib", "run", NAME, "--methods", "eapp"], "unknown method 'eapp'"),
        (["compare", NAME, "--protocol", "mibs"], "expected curve or mib"),
        (["mib", "pack", "nowhere"], "mib.json"),
    ],
)
def test_bad_input(command: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(command) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error


def test_a_level_that_nothing_rates_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    how = ["--methods", "gim", "--level", "edge", "-n", "2", "--held-out", "2"]
    assert cli.main(["mib", "run", NAME, *how, "--out", str(tmp_path)]) == 1
    assert "rates nodes, not edges" in capsys.readouterr().out
