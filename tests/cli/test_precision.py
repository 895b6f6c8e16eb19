"""--precision: the whole command has it, and the next one does not."""

import pytest
import torch

from unweave import cli
from unweave.decomposition import precision
from unweave.errors import UnweaveError
from unweave.model import loading
from unweave.precision import ask, asked, precision_kept
from unweave.testing.problem import tiny_problem

COMMANDS = [
    ["discover", "wired-induction"],
    ["compare", "wired-induction", "--methods", "eap"],
    ["mib", "run", "wired-induction"],
    ["attribute", "a b", "--model", "wired-induction"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_command_loads_in_the_precision_asked_for(command, monkeypatch, tmp_path) -> None:
    seen = []

    def load(*args, **kwargs):
        seen.append(asked())
        raise UnweaveError("enough")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loading, "load", load)
    assert cli.main([*command, "--precision", "float64"]) == 2
    assert seen == ["float64"]
    assert asked() is None


def test_an_unknown_precision_is_an_error(capsys) -> None:
    assert cli.main(["discover", "wired-induction", "--precision", "half"]) == 2
    assert "precision half: expected float32, tf32, float64" in capsys.readouterr().err


def test_what_was_asked_for_holds_where_a_call_names_none() -> None:
    problem = tiny_problem("llama", dtype=torch.float32)
    with precision_kept():
        ask("float64")
        assert loading.load("wired-induction").network.dtype == torch.float64
        assert precision.widened(problem.model, None).network.dtype == torch.float64
        assert precision.widened(problem.model, "float32").network.dtype == torch.float32
    with precision_kept():
        ask("tf32")
        with pytest.raises(UnweaveError, match="'tf32' needs an NVIDIA GPU"):
            precision.uses_tf32(problem.model, None)
    assert loading.load("wired-induction").network.dtype == torch.float32
