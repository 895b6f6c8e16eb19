"""`unweave explain`: what it prints and writes, and bad input."""

import json
from dataclasses import replace

import pytest

from unweave import cli
from unweave.errors import UnweaveError
from unweave.experiments.discover import discover
from unweave.experiments.run_folder import read_run
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


def test_explain_keeps_roles_and_sentences_in_the_run(run, capsys):
    assert cli.main(["explain", str(run), "-n", "8", "-q"]) == 0
    record = json.loads((run / "explain.json").read_text())
    wanted = {one["node"]: one for one in record["nodes"]}
    nodes = json.loads((run / "circuit.json").read_text())["nodes"]
    for node in nodes:
        one = wanted[node["site"]]
        assert node["sentence"] == one["sentence"]
        assert node["roles"] == [role["name"] for role in one["roles"]]
    told = json.loads((run / "run.json").read_text())["explanation"]
    assert {one["node"]: one["sentence"] for one in told["nodes"]} == {
        name: one["sentence"] for name, one in wanted.items()
    }
    near = {one["node"]: one["undecided"] for one in told["nodes"]}
    assert near == {name: one["undecided"] for name, one in wanted.items()}
    assert told["prompts"] == 8
    assert told["passes"] == record["cost"]["passes"]
    # Figures in a sentence are those that were measured.
    mover = wanted["a2.h0"]
    effect = mover["measurements"]["effect"]
    half = 1.96 * effect["error"]
    assert f"falls by {effect['mean']:.2f} ± {half:.2f}" in mover["sentence"]
    circuit = read_run(run).circuit
    assert circuit.explain("a2.h0") == f"a2.h0  induction, mover\n  {mover['sentence']}"
    assert circuit.explain() == "\n".join(map(circuit.explain, circuit.nodes))
    assert circuit.explain("a1.h2").startswith("a1.h2  previous token\n")
    assert mover["sentence"][:60] in (run / "report.html").read_text()


def test_discover_explains_unless_told_not_to(run, tmp_path, capsys):
    command = ["discover", NAME, "-n", "8", "--held-out", "8", "--out", str(tmp_path / "a")]
    assert cli.main(command) == 0
    table = capsys.readouterr().out
    assert {"role", "previous", "induction,"} <= set(table.split())
    record = json.loads((tmp_path / "a" / "run.json").read_text())
    assert record["forwards"]["explanation"] < 0.3 * sum(record["forwards"].values())
    assert cli.main([*command[:-1], str(tmp_path / "b"), "--no-explain"]) == 0
    assert "role" not in capsys.readouterr().out.split()
    other = json.loads((tmp_path / "b" / "run.json").read_text())
    assert "explanation" not in other["forwards"]
    assert other["explanation"] is None
    circuit = read_run(tmp_path / "b").circuit
    with pytest.raises(UnweaveError, match="was not explained: run unweave explain"):
        circuit.explain()
    with pytest.raises(UnweaveError, match=r"a0\.h0 is not in the circuit"):
        circuit.explain("a0.h0")
    explained = read_run(tmp_path / "a").circuit
    assert replace(explained, summaries={}) == circuit  # nothing else changes


def test_nodes_without_roles_are_no_error_of_discover(tmp_path):
    how = Specification(NAME, NAME, method="eap", granularity="qkv", prompts=4, held_out=4)
    circuit = discover(load(NAME), NAME, how, tmp_path / "run")
    told = read_run(tmp_path / "run").record["explanation"]
    assert circuit.summaries == {}
    assert "neither a head nor an MLP" in told["reason"]


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


def test_discover_explains_by_the_users_own_roles(tmp_path, capsys):
    roles = tmp_path / "roles.toml"
    roles.write_text(
        '[[role]]\nname = "any head"\nof = ["head"]\nsays = "is a head"\n'
        'evidence = [{ measure = "effect_share", at_least = 0.0 }]\n'
    )
    how = ["discover", NAME, "-n", "8", "--held-out", "8", "-q", "--roles", str(roles)]
    assert cli.main([*how, "--out", str(tmp_path / "run")]) == 0
    circuit = read_run(tmp_path / "run").circuit
    assert set(circuit.summaries) == set(circuit.nodes)
    assert all("any head" in one.roles for one in circuit.summaries.values())
    assert "previous token" in circuit.summaries["a1.h2"].roles
    capsys.readouterr()
    # A file with a mistake is an error before anything is run.
    roles.write_text("[[role]]\n")
    assert cli.main([*how, "--out", str(tmp_path / "two")]) == 2
    assert "has no name" in capsys.readouterr().err
    assert not (tmp_path / "two").exists()
    assert cli.main([*how, "--no-explain"]) == 2
    assert "drop it, or --no-explain" in capsys.readouterr().err
