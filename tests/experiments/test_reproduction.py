"""`unweave reproduce` on models whose circuit is known: figures against slow twins."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from oracles.algorithm1 import Twin
from oracles.patched import patched
from transformers import GPT2Config

from unweave import cli
from unweave.ablation import Ablation
from unweave.behaviours.published import GPT2_SMALL, ModelShape, published_roles
from unweave.behaviours.task import tasks
from unweave.errors import UnweaveError
from unweave.experiments.reproduction import parts
from unweave.experiments.reproduction.reproduce import Reproduction, reproduce
from unweave.experiments.reproduction.subjects import PAPER, chosen_subjects
from unweave.experiments.specification import Experiment, Specification
from unweave.model.loading import load
from unweave.report.reproduction import reproduction_page
from unweave.roles.definitions import bundled_roles
from unweave.roles.published import EXPECTED
from unweave.scores.problem import Problem
from unweave.scores.score import scores as registered
from unweave.sites import Point, parse

NAME = "wired-induction"


def experiment_on(name: str) -> Experiment:
    return Experiment.set_up(Specification(name, name, prompts=8, held_out=8), load(name))


def by_example(problem: Problem) -> Problem:
    """The same problem, its ablation written out for every example, as the slow twin wants it."""
    old = problem.ablation
    values = {
        point: rows if old.rows is None else rows[old.rows] for point, rows in old.values.items()
    }
    return replace(problem, ablation=Ablation(old.name, values))


@pytest.fixture(scope="module")
def wired() -> Experiment:
    return experiment_on(NAME)


@pytest.fixture(scope="module")
def swept(wired: Experiment) -> dict[str, Any]:
    return parts.sweep(wired, {}, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reproduce")


@pytest.fixture(scope="module")
def record(folder: Path) -> dict[str, Any]:
    """One synthetic model, and one that is not on this machine."""
    subjects = chosen_subjects((NAME, "ioi"), "no/such-model", 8, 8)
    return reproduce(Reproduction(subjects, draws=2), folder, load)


@pytest.mark.parametrize("rules", ["paper", "removal"])
def test_the_area_is_that_of_the_slow_algorithm_run_at_every_percentile(
    rules: str, wired: Experiment, swept: dict[str, Any]
) -> None:
    problem, wanted = by_example(wired.discovery), {"a1.h2", "a2.h0"}
    scores = registered["decomposition"].run(problem, {"rules": rules, "pairs": True, "prompts": 8})
    points = {(0.0, 0.0), (1.0, 1.0)}
    for percentile in range(90, 100):
        circuit = set(Twin(problem, scores, percentile).run(10)[-1][1])
        points.add((len(circuit - wanted) / 10, len(circuit & wanted) / 2))
    line = sorted(points)
    area = sum((x2 - x1) * (y1 + y2) / 2 for (x1, y1), (x2, y2) in itertools.pairwise(line))
    method = {"paper": "cdt-paper", "removal": "decomposition+algorithm1"}[rules]
    found = swept["methods"][method]
    assert found["roc"]["auc"] == pytest.approx(area)
    assert len(found["runs"]) == len(found["roc"]["points"]) == 10
    assert found["roc"]["auc"] == (1.0 if rules == "removal" else pytest.approx(0.75))


def test_seconds_and_passes_count_the_score_in_every_run(swept: dict[str, Any]) -> None:
    for name in ("cdt-paper", "eap", "acdc"):
        found = swept["methods"][name]
        assert found["seconds"] == pytest.approx(
            sum(run["seconds"] for run in found["runs"]) / len(found["runs"])
        )
    # EAP: a forward pass with a backward one, counted three times; cutting costs nothing.
    assert {run["forwards"] for run in swept["methods"]["eap"]["runs"]} == {3.0}


def test_the_table_is_that_of_plain_runs(wired: Experiment, swept: dict[str, Any]) -> None:
    found = parts.table(wired, swept, 2)["rows"]
    problem, batch = by_example(wired.held_out), wired.held_out.batch
    circuits = {"whole model": problem.nodes, "every head ablated": ()}
    circuits |= {"published": wired.known()["published"]}
    circuits |= {n: tuple(map(parse, m["circuit"])) for n, m in swept["methods"].items()}
    assert found.keys() == circuits.keys()
    for name, circuit in circuits.items():
        gone = [node for node in problem.nodes if node not in set(circuit)]
        out = patched(problem.model.network, batch.clean, gone, problem.ablation.values)
        logits = out[Point("logits")][torch.arange(len(batch)), batch.readout.read]
        metric = batch.readout.measure(logits)
        assert found[name]["metric"] == pytest.approx(float(metric.mean()), abs=1e-4)
        assert found[name]["correct"] == float((metric > 0).double().mean())
        assert found[name]["nodes"] == len(circuit)


def test_curves_begin_at_nothing_and_end_at_the_model(
    wired: Experiment, swept: dict[str, Any]
) -> None:
    found = parts.curves(wired, swept, 3)
    for curve in (*found["lines"].values(), found["random"]):
        assert curve["faithfulness"][0] == pytest.approx(0, abs=1e-4)
        assert curve["faithfulness"][-1] == pytest.approx(1, abs=1e-4)
    assert len(found["random"]["draws"]) == 3
    assert found["known"]["published"]["faithfulness"] == pytest.approx(1, abs=1e-3)
    assert {"cdt-paper", "eap", "cdt-paper, from zero ablation"} <= found["lines"].keys()


def test_random_circuits_are_beaten_by_the_wired_one(
    wired: Experiment, swept: dict[str, Any]
) -> None:
    found = parts.random_test(wired, swept, 4)["methods"]["cdt"]
    assert found["size"] == 2
    shares = {share["fraction"]: share["farther"] for share in found["shares"]}
    assert shares[0.1] == shares[0.2] == 1.0  # one or two heads at random are not the circuit


def test_roles_are_those_that_were_wired(wired: Experiment, swept: dict[str, Any]) -> None:
    found = parts.roles(wired, swept, 2)
    assert (found["agree"], found["tested"]) == (2, 2)
    assert {row["node"]: row["found"] for row in found["nodes"]}["a1.h2"] == ["previous token"]


def test_agreement_with_published_roles_is_counted_by_head(
    wired: Experiment, swept: dict[str, Any], record: dict[str, Any]
) -> None:
    """As for GPT-2's heads: our names for theirs; a head whose role has none is not counted."""
    told = "previous token: 1.2\nname mover: 2.0@end\nS-inhibition: 0.1@end\nsupporting: 0.2"
    circuit = replace(wired.task.known[NAME], roles=published_roles(told))
    published = replace(wired, task=replace(wired.task, name="mine", known={NAME: circuit}))
    found = parts.roles(published, swept, 2)
    assert {
        row["node"]: (row["expected"], row["found"], row["agrees"]) for row in found["nodes"]
    } == {
        "a1.h2": (["previous token"], ["previous token"], True),
        "a2.h0": (["mover"], ["induction", "mover"], True),
        "a0.h1": (["inhibition"], [], False),
        "a0.h2": ([], [], None),
    }
    assert (found["agree"], found["tested"]) == (2, 3)
    mine = json.loads(json.dumps(record))
    mine["subjects"][0]["parts"]["roles"] = found
    page = reproduction_page(mine)
    assert "2 of 3 nodes have the role that is known of them" in page
    assert "S-inhibition" in page


def test_every_published_role_of_ioi_has_one_of_ours() -> None:
    known = {role.name for role in bundled_roles().roles}
    assert {role for roles in EXPECTED.values() for role in roles} <= known
    # All 26 heads are counted.
    assert set(tasks["ioi"].known["gpt2"].roles) <= set(EXPECTED)
    assert sum(len(sites) for sites in tasks["ioi"].known["gpt2"].roles.values()) == 26


def test_of_a_model_that_nothing_is_known_of_the_circuit_that_was_found_is_explained(
    wired: Experiment, swept: dict[str, Any], record: dict[str, Any]
) -> None:
    unknown = replace(wired, task=replace(wired.task, name="mine", known={}))
    found = parts.roles(unknown, swept, 2)
    assert (found["agree"], found["tested"]) == (0, 0)
    assert {row["node"]: row["found"] for row in found["nodes"]} == {
        "a1.h2": ["previous token"],
        "a2.h0": ["induction", "mover"],
    }
    assert "known as" in reproduction_page(record)
    mine = json.loads(json.dumps(record))
    mine["subjects"][0]["parts"]["roles"] = found
    page = reproduction_page(mine)
    assert "no roles of this model are published" in page
    assert "known as" not in page
    assert found["nodes"][0]["sentence"].split(";")[0] in page


def test_the_page_says_which_model_it_is_and_whose_figures_were_printed(
    record: dict[str, Any],
) -> None:
    shape = "synthetic, 3 layers of 4 heads, width 82"
    assert record["subjects"][0]["shape"] == shape
    mine = json.loads(json.dumps(record))
    mine["subjects"][0] |= {"task": "docstring", "model": "my-folder"}
    mine["subjects"][0]["printed"] = {"whole model": (3.661, 1.0)}
    page = reproduction_page(mine)
    assert shape in page
    assert "docstring on my-folder" in page
    assert "metric, printed for attn-only-4l" in page


def test_published_stages_are_relevance_to_heads_at_their_position(
    wired: Experiment, swept: dict[str, Any]
) -> None:
    """The paper's heatmaps, with roles as if they had been published of the wired model."""
    roles = published_roles("name mover: 2.0@end\nS-inhibition: 1.2@nowhere")
    known = {NAME: replace(wired.task.known[NAME], roles=roles)}
    apart = replace(wired, task=replace(wired.task, known=known))
    first, second = parts.heatmaps(apart, swept, 2)["stages"]
    assert (first["target"], second["target"]) == ("logits", "name mover")
    problem = Experiment.set_up(
        replace(wired.specification, granularity="head@position"), wired.model, wired.task
    ).discovery
    scores = registered["decomposition"].run(
        problem, {"rules": "paper", "pairs": True, "prompts": 8}
    )
    column = scores.pairs["ratio"][:, scores.targets.index("a2.h0@end")]
    for node in wired.nodes:
        row = scores.sources.index(f"{node}@end")
        assert first["values"][str(node)] == float(scores.values[row])
        assert second["values"][str(node)] == float(column[row])


def test_rounds_have_every_node(wired: Experiment, swept: dict[str, Any]) -> None:
    rounds = parts.heatmaps(wired, swept, 2)["rounds"]
    assert rounds[0]["targets"] == ("logits",)
    assert rounds[0]["values"].keys() == set(map(str, wired.nodes))


def test_published_circuits_have_roles_and_positions() -> None:
    for subject in PAPER:
        task = tasks[subject.task]
        circuit = task.known[subject.model]
        listed = [site.at(None) for sites in circuit.roles.values() for site in sites]
        assert sorted(map(str, listed)) == sorted(map(str, circuit.nodes))
    ioi = tasks["ioi"].known["gpt2"].roles
    assert parse("a8.h10@end") in ioi["S-inhibition"]
    assert parse("a2.h2@S1+1") in ioi["previous token"]


def test_a_folder_with_another_name_is_known_by_its_config(tiny_gpt2: Path) -> None:
    config = GPT2Config()  # that of GPT-2 small
    assert (
        "gpt2",
        config.n_layer,
        config.n_head,
        config.n_embd,
        config.vocab_size,
    ) == GPT2_SMALL
    model = load(str(tiny_gpt2))
    assert tasks["ioi"].known_circuit(model) is None
    shape = ModelShape("gpt2", 2, 3, 24, 50)
    circuit = replace(tasks["ioi"].known["gpt2"], shape=shape)
    assert replace(tasks["ioi"], known={"gpt2": circuit}).known_circuit(model) is circuit


@pytest.fixture(scope="module")
def tiny_gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import GPT2LMHeadModel

    folder = tmp_path_factory.mktemp("my-copy")
    config = GPT2Config(vocab_size=50, n_positions=16, n_embd=24, n_layer=2, n_head=3)
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def test_a_model_that_is_not_there_is_told_and_the_others_go_on(record: dict[str, Any]) -> None:
    wired, ioi = record["subjects"]
    assert wired["parts"].keys() == parts.REPRODUCED.keys()
    assert "no/such-model" in ioi["error"]
    page = reproduction_page(record)
    assert "Not reproduced here" in page
    assert "ioi on no/such-model" in page
    assert "The paper's own experiments on this page: none." in page.replace("&#39;", "'")


def test_it_goes_on_where_it_was(
    folder: Path, record: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    subjects = chosen_subjects((NAME,), None, 8, 8)
    (folder / "parts" / f"{NAME}-{NAME}--random_circuits.json").unlink()
    again = reproduce(Reproduction(subjects, draws=2), folder, load, told.append)
    assert told == [f"{NAME} on {NAME}: random_circuits"]
    mine, before = again["subjects"][0]["parts"], record["subjects"][0]["parts"]
    assert mine == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: "{", "is not JSON"),
        (lambda text: "{}", "is not a part of unweave reproduce"),
        (lambda text: text.replace('"seed": 0', '"seed": 3'), "made with seed = 3, now it is 0"),
    ],
)
def test_a_broken_part_is_an_error(folder: Path, record: Any, change: Any, message: str) -> None:
    path = folder / "parts" / f"{NAME}-{NAME}--table.json"
    text = path.read_text()
    path.write_text(change(text))
    try:
        with pytest.raises(UnweaveError, match=message):
            reproduce(Reproduction(chosen_subjects((NAME,), None, 8, 8), draws=2), folder, load)
    finally:
        path.write_text(text)


def test_names_and_texts_are_escaped(record: dict[str, Any]) -> None:
    bad = json.loads(json.dumps(record))
    bad["subjects"][0]["model"] = "<script>alert(1)</script>"
    bad["subjects"][1]["error"] = "<img src=x onerror=alert(1)>"
    page = reproduction_page(bad)
    assert "<script>alert" not in page
    assert "<img src=x" not in page


def test_the_command(
    folder: Path,
    record: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(typer, "launch", opened.append)
    how = ["reproduce", NAME, "-n", "8", "--held-out", "8", "--draws", "2"]
    assert cli.main([*how, "--out", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "cdt-paper" in shown
    assert "AUC" in shown
    assert f"open {folder / 'reproduce.html'}" in shown
    assert (folder / "reproduce.html").stat().st_size < 6_000_000
    assert opened == []
    assert cli.main([*how, "--out", str(folder), "--json", "--open"]) == 0
    assert opened == [str(folder / "reproduce.html")]
    assert json.loads(capsys.readouterr().out)["subjects"][0]["task"] == NAME
    assert cli.main(["reproduce", "wired-inducton", "--out", str(tmp_path / "new")]) == 2
    assert "did you mean wired-induction" in capsys.readouterr().err
    nothing = ["reproduce", "ioi", "-m", "no/such-model", "--out", str(tmp_path / "none"), "-q"]
    assert cli.main(nothing) == 2
    assert "nothing could be reproduced" in capsys.readouterr().err
