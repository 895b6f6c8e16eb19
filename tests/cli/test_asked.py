"""--precision and --memory: the whole command has them, and the next one does not."""

import inspect

import pytest
import torch
import typer

from unweave import cli
from unweave.asked import ask_memory, ask_precision, asked_memory, asked_precision, forgotten
from unweave.decomposition import precision
from unweave.decomposition.api import relevance
from unweave.errors import UnweaveError
from unweave.experiments import compare
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
