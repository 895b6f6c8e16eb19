"""`unweave explain`: what it prints and writes, and bad input."""

import json

import pytest

from unweave import cli
from unweave.experiments.discover import discover
from unweave.experiments.specification import Specification
from unweave.model.loading import load

NAME = "wired-induction"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "one"
    how = Specification(NAME, NAME, prompts=12, held_out=12)
    discover(load(NAME), NAME, how, folder)
    return folder


def test_explain_prints_sentences_and_writes_its_record(run, capsys):
    assert cli.main(["explain", str(run), "-n", "12"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "a1.h2 previous token" in output
    assert "a2.h0 induction, mover" in output
    assert "its key comes from a1.h2 (100%)" in output
    record = json.loads((run / "explain.json").read_text())
    assert [node["node"] for node in record["nodes"]] == ["a1.h2", "a2.h0"]
    assert record["cost"]["passes"] < 20
    assert f"Cost: {record['cost']['passes']:.1f} forward passes of 12 prompts." in output


def test_explain_one_node_as_json(run, capsys):
    assert cli.main(["explain", str(run), "a2.h0", "-n", "12", "--json"]) == 0
    (node,) = json.loads(capsys.readouterr().out)["nodes"]
    assert node["node"] == "a2.h0"
    assert [role["name"] for role in node["roles"]] == ["induction", "mover"]


def test_explain_lists_what_roles_may_require(capsys):
    assert cli.main(["explain", "--measures"]) == 0
    assert "direct_share" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no run folder"),
        (["{run}", "a0.h0"], "a0.h0 is not in the circuit: it has"),
        (["{run}", "--roles", "none.toml"], "cannot read the roles none.toml"),
        (["{run}/none"], "no run folder"),
    ],
)
def test_bad_arguments(run, capsys, arguments, message):
    given = [argument.format(run=run) for argument in arguments]
    assert cli.main(["explain", *given]) == 2
    assert message in capsys.readouterr().err
