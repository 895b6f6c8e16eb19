"""The package's outer shell: what importing costs, public names, and how the command line fails."""

import importlib
import pkgutil
import subprocess
import sys
from importlib.metadata import entry_points

import pytest
import typer

import unweave
from unweave import cli
from unweave.errors import UnweaveError
from unweave.registry import Registry

HEAVY = ("torch", "transformers", "numpy", "gguf", "safetensors")


def heavy_modules_after(code: str) -> list[str]:
    """Runs `code` in a fresh interpreter and returns the heavy packages that it imported."""
    report = f"import sys; print(*[m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True
    )
    return done.stderr.split()


def test_import_is_light():
    assert heavy_modules_after("import unweave") == []


@pytest.mark.parametrize("args", [["--help"], ["--version"], []])
def test_help_is_light(args):
    assert heavy_modules_after(f"import unweave.cli; assert unweave.cli.main({args!r}) == 0") == []


def test_every_command_has_light_help():
    code = """
from unweave import cli
for name in cli.commands:
    assert cli.main([name, "--help"]) == 0, name
"""
    assert heavy_modules_after(code) == []


def test_heavy_import_is_noticed():
    assert "numpy" in heavy_modules_after("import numpy")


def test_script_is_installed():
    (script,) = entry_points(group="console_scripts", name="unweave")
    assert script.load() is cli.main


@pytest.mark.parametrize("name", unweave.__all__)
def test_public_names_resolve(name):
    assert getattr(unweave, name) is not None
    assert name in dir(unweave)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'unweave' has no attribute 'loda'"):
        _ = unweave.loda


def test_no_folder_shares_its_name_with_a_public_name():
    modules = {module.name for module in pkgutil.iter_modules(unweave.__path__)}
    assert "decomposition" in modules
    assert not modules & {*unweave.__all__}


def test_modules_are_imported_by_their_path():
    module = importlib.import_module("unweave.decomposition.rules")
    assert unweave.decompose is importlib.import_module("unweave.decomposition.api").decompose
    assert sys.modules["unweave"].decomposition.rules is module


@pytest.fixture
def register(monkeypatch):
    """Replaces the commands by those that the test registers."""
    commands = Registry("command", "unweave.cli")
    list(commands)  # discovery is over, and what it imports was registered elsewhere
    monkeypatch.setattr(cli, "commands", commands)
    return commands.register


def raising(error: BaseException):
    def command() -> None:
        raise error

    return command


def test_user_error_is_one_line_with_code_2(register, capsys):
    register("fail")(raising(UnweaveError("unknown model 'gtp2':\ndid you mean gpt2?")))
    assert cli.main(["fail"]) == 2
    output = capsys.readouterr()
    assert output.err == "error: unknown model 'gtp2': did you mean gpt2?\n"
    assert output.out == ""


def test_debug_shows_the_traceback(register):
    register("fail")(raising(UnweaveError("unknown model")))
    with pytest.raises(UnweaveError, match="unknown model"):
        cli.main(["--debug", "fail"])


def test_bug_is_not_disguised(register):
    register("fail")(raising(ZeroDivisionError("bug")))
    with pytest.raises(ZeroDivisionError):
        cli.main(["fail"])


def test_interrupt_exits_with_130(register, capsys):
    register("wait")(raising(KeyboardInterrupt()))
    assert cli.main(["wait"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_exit_code_of_a_command_is_kept(register):
    register("differ")(raising(typer.Exit(1)))
    assert cli.main(["differ"]) == 1


def test_success_is_0(register):
    register("fine")(lambda: None)
    assert cli.main(["fine"]) == 0


def test_group_of_commands(register, capsys):
    group = typer.Typer()
    group.command("list")(lambda: typer.echo("ioi"))
    group.command("show")(lambda: typer.echo("prompts"))
    register("tasks")(group)
    assert cli.main(["tasks", "list"]) == 0
    assert capsys.readouterr().out == "ioi\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["chekc"], "No such command 'chekc'. Did you mean 'check'? (see unweave --help)"),
        (["check", "--fats"], "No such option: --fats (see unweave check --help)"),
        (["--fats"], "No such option: --fats (see unweave --help)"),
    ],
)
def test_misuse_is_one_line_with_code_2(register, capsys, args, message):
    register("check")(lambda: None)
    assert cli.main(args) == 2
    assert capsys.readouterr().err == f"error: {message}\n"


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"unweave {unweave.__version__}\n"
