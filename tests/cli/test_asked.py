"""--precision and --memory: the whole command has them, and the next one does not."""

import inspect
import json

import pytest
import torch
import typer

from unweave import cli
from unweave.asked import ask_memory, ask_precision, asked_memory, asked_precision, forgotten
from unweave.decomposition import precision
from unweave.decomposition.api import relevance
from unweave.errors import UnweaveError
from unweave.experiments import compare
from unweave.experiments.discover import discover
from unweave.experiments.run_folder import read_run
from unweave.experiments.specification import Experiment, Specification
from unweave.model import loading
from unweave.model.weights import tensors
from unweave.testing.problem import tiny_problem

COMMANDS = [
    ["discover", "wired-induction"],
    ["compare", "wired-induction", "--methods", "eap"],
    ["mib", "run", "wired-induction"],
    ["attribute", "a b", "--model", "wired-induction"],
    ["plan", "wired-induction"],
    ["tasks", "show", "wired-induction"],
]
# Commands that run no model; `check` is a comparison in float32, whatever the device.
WITHOUT = {"check", "export", "methods", "mib pack", "models", "plot", "report", "tasks"}


def leaves() -> dict[str, set[str]]:
    """The options of every command and of the commands of every group."""
    found = {}
    for name in cli.commands:
        entry = cli.commands[name]
        if isinstance(entry, typer.Typer):
            for one in entry.registered_commands:
                assert one.callback is not None
                own = one.name or one.callback.__name__
                found[f"{name} {own}"] = set(inspect.signature(one.callback).parameters)
        else:
            found[name] = set(inspect.signature(entry).parameters)
    return found


def test_every_command_that_runs_a_model_takes_device_precision_and_memory() -> None:
    found = leaves()
    assert len(found) > 15
    lacking = {
        name: missing
        for name, options in found.items()
        if name not in WITHOUT and (missing := {"device", "precision", "memory"} - options)
    }
    assert lacking == {}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_command_loads_in_the_precision_asked_for(command, monkeypatch, tmp_path) -> None:
    seen = []

    def load(*args, **kwargs):
        seen.append((asked_precision(), asked_memory()))
        raise UnweaveError("enough")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loading, "load", load)
    monkeypatch.setattr(compare, "load_model", load)
    assert cli.main([*command, "--precision", "float64", "--memory", "2GB"]) == 2
    assert seen == [("float64", "2GB")]
    assert asked_precision() is None
    assert asked_memory() is None


def test_an_unknown_precision_is_an_error(capsys) -> None:
    assert cli.main(["discover", "wired-induction", "--precision", "half"]) == 2
    assert "precision half: expected float32, tf32, float64" in capsys.readouterr().err


def test_memory_that_is_no_size_is_an_error(capsys) -> None:
    assert cli.main(["discover", "wired-induction", "--memory", "much"]) == 2
    assert "memory 'much' is not a size" in capsys.readouterr().err


def test_memory_of_a_command_is_for_weights_and_work() -> None:
    problem = tiny_problem("llama", dtype=torch.float32)
    weights = sum(x.numel() * 4 for x in tensors(problem.model.network))
    with forgotten():
        ask_memory(f"{weights // 2}")
        with pytest.raises(UnweaveError, match="less than the weights that are stored on cpu"):
            relevance(problem.model, problem.batch, "heads", ablation="zero")
        # A call that names its own speaks of the work alone.
        relevance(problem.model, problem.batch, "heads", ablation="zero", memory="1GB")


def test_what_was_asked_for_holds_where_a_call_names_none() -> None:
    problem = tiny_problem("llama", dtype=torch.float32)
    with forgotten():
        ask_precision("float64")
        assert loading.load("wired-induction").network.dtype == torch.float64
        assert precision.widened(problem.model, None).network.dtype == torch.float64
        assert precision.widened(problem.model, "float32").network.dtype == torch.float32
    with forgotten():
        ask_precision("tf32")
        with pytest.raises(UnweaveError, match="'tf32' needs an NVIDIA GPU"):
            precision.uses_tf32(problem.model, None)
    assert loading.load("wired-induction").network.dtype == torch.float32


def test_a_run_keeps_its_precision(tmp_path, monkeypatch, capsys) -> None:
    """What is done with a run later is done in its precision, unless another is asked for."""
    run = tmp_path / "run"
    quick = ["discover", "wired-induction", "--method", "eap", "-n", "6", "--held-out", "6", "-q"]
    wide = [*quick, "--precision", "float64", "--out", str(run)]
    assert cli.main([*wide, "--no-explain"]) == 0
    assert read_run(run).specification.precision == "float64"
    assert cli.main([*quick, "--resume", "--out", str(run)]) == 2
    assert "precision was 'float64', is None" in capsys.readouterr().err

    loaded, load = [], loading.load

    def seen(*args, **kwargs):
        loaded.append(load(*args, **kwargs))
        return loaded[-1]

    monkeypatch.setattr(loading, "load", seen)
    later = [["evaluate", "--parts", "roc"], ["explain"], ["paths", "-n", "4"]]
    for command, *options in later:
        assert cli.main([command, str(run), "-q", *options]) == 0
    assert [model.network.dtype for model in loaded] == [torch.float64] * 3
    assert asked_precision() is None
    assert cli.main(["evaluate", str(run), "--parts", "roc", "-q", "--precision", "float32"]) == 0
    assert loaded[-1].network.dtype == torch.float32
    settings = json.loads((run / "evaluation.json").read_text())["settings"]
    assert settings["specification"]["precision"] == "float32"
    assert read_run(run).specification.precision == "float64"


def test_a_run_without_a_precision_is_one_that_asked_for_none(tmp_path) -> None:
    """As older versions wrote them; an interrupted one goes on."""
    how = Specification("wired-induction", "wired-induction", method="eap", prompts=4, held_out=4)
    model = loading.load("wired-induction")
    discover(model, "wired-induction", how, tmp_path / "run", explain=False)
    path = tmp_path / "run" / "run.json"
    record = json.loads(path.read_text())
    del record["identity"]["specification"]["precision"]
    path.write_text(json.dumps(record))
    assert read_run(tmp_path / "run").specification.precision is None
    again = discover(model, "wired-induction", how, tmp_path / "run", resume=True, explain=False)
    assert again.nodes == read_run(tmp_path / "run").circuit.nodes


def test_a_specification_in_python_has_its_precision() -> None:
    how = Specification("wired-induction", "wired-induction", precision="float64")
    model = loading.load("wired-induction")
    assert Experiment.set_up(how, model).model.network.dtype == torch.float64
    with pytest.raises(UnweaveError, match="precision half: expected float32"):
        Specification("wired-induction", "wired-induction", precision="half")
