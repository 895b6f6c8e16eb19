"""The command line. One file of this folder is one command.

A command is registered from its own file and is found by folder discovery:

    from unweave.cli import commands

    @commands.register("check")
    def check(model: str) -> None: ...

A `typer.Typer` registered the same way becomes a group of commands. Every file is imported at
start, so its top holds light imports only; torch, transformers and our own modules that need them
are imported inside the function. A command that has to fail without an error raises `typer.Exit`.
"""

import errno
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from io import TextIOWrapper
from typing import Annotated, Any

import typer

from unweave import __version__
from unweave.asked import forgotten
from unweave.errors import UnweaveError, UnweaveWarning
from unweave.registry import Registry

commands: Registry[Callable[..., None] | typer.Typer] = Registry("command", "unweave.cli")

SHARED = ("discover", "evaluate", "compare")  # commands that several processes do together
INTERRUPTED = 130  # the exit code that typer and shells give to Ctrl-C
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # what a full disk says of a write
_COMPLETION = "_UNWEAVE_COMPLETE"  # set by the shell when it asks what a word could become
START = """\
unweave discover ioi                          find a circuit and write its report, in minutes
unweave attribute "Who wrote this document?"  show how much each word adds to a prediction
unweave --help                                all commands; unweave COMMAND --help explains one"""


@dataclass
class GlobalOptions:
    """The global options, filled in while the command line is parsed."""

    debug: bool = False


def main(args: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        args: What follows `unweave` on the command line; taken from there if not given.

    Returns:
        The exit code: 0; 2 for an error that the user can fix, printed as one line; 130 when
        interrupted; 1 where nobody reads on (`| head`); else what the command asked for with
        `typer.Exit`.
    """
    args = list(sys.argv[1:] if args is None else args)
    settings = GlobalOptions()
    _print_anything()
    try:
        with _notes(), forgotten(), _processes(args):
            app = _build_app(settings)
            if args or _COMPLETION in os.environ:
                code = app(args, prog_name="unweave", standalone_mode=False)
            else:
                code = typer.echo(START)
            if sys.stdout is not None:
                sys.stdout.flush()  # a full disk is found here, and not when Python ends
    except (UnweaveError, typer.TyperException) as error:
        if settings.debug:
            raise
        typer.echo(f"error: {_one_line(error)}", err=True)
        return 2
    except OSError as error:
        return _not_printed(error)
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code == INTERRUPTED:
        typer.echo("interrupted", err=True)
    return code or 0


def _not_printed(error: OSError) -> int:
    """The exit code where standard output took no more; any other error is raised again."""
    broken = isinstance(error, BrokenPipeError)
    if error.filename is not None or not (broken or error.errno in _FULL):
        raise error
    with suppress(OSError, ValueError):  # Python would try once more when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if broken:
        return 1
    typer.echo(f"error: cannot write standard output: {error.strerror}; make room", err=True)
    return 2


@contextmanager
def _processes(args: Sequence[str]) -> Iterator[None]:
    """Under torchrun, processes share a long job; anything else is the first one's to do."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:  # torch takes seconds to import
        yield
        return
    from unweave import distributed

    if next((arg for arg in args if not arg.startswith("-")), "") not in SHARED:
        if distributed.launched() and os.environ.get("RANK") != "0":
            raise SystemExit(0)
        yield
        return
    with ExitStack() as quiet, distributed.joined() as ranks:
        if not ranks.first:
            null = quiet.enter_context(open(os.devnull, "w"))
            quiet.enter_context(redirect_stdout(null))
            quiet.enter_context(redirect_stderr(null))
        yield


def _print_anything() -> None:
    """Characters that the terminal cannot show (Δ in ASCII, a path of odd bytes) become escapes.

    A terminal of no width is one that does not say how wide it is: tables would be empty.
    """
    if os.environ.get("COLUMNS", "").strip("0") == "":
        os.environ.pop("COLUMNS", None)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def _notes() -> Iterator[None]:
    """Within this block our warnings are lines of their own on standard error."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", UnweaveWarning)
        usual = warnings.showwarning

        def show(message: Any, category: type[Warning], *where: Any) -> None:
            if issubclass(category, UnweaveWarning):
                typer.echo(f"note: {message}", err=True)
            else:
                usual(message, category, *where)

        warnings.showwarning = show
        yield


def _one_line(error: UnweaveError | typer.TyperException) -> str:
    if not isinstance(error, typer.TyperException):
        return " ".join(str(error).splitlines())
    message = " ".join(error.format_message().splitlines())
    context = getattr(error, "ctx", None)
    return f"{message} (see {context.command_path} --help)" if context else message


def _build_app(settings: GlobalOptions) -> typer.Typer:
    # Markdown leaves brackets alone, which rich's own markup takes for styles: unweave[plots].
    app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode="markdown")

    @app.callback()
    def root(
        debug: Annotated[bool, typer.Option("--debug", help="Show an error's traceback.")] = False,
        version: Annotated[
            bool,
            typer.Option(
                "--version", callback=_show_version, is_eager=True, help="Show the version."
            ),
        ] = False,
    ) -> None:
        """Find circuits in transformers by contextual decomposition."""
        settings.debug = debug

    for name in commands:
        entry = commands[name]
        if isinstance(entry, typer.Typer):
            app.add_typer(entry, name=name)
        else:
            app.command(name)(entry)
    return app


def _show_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"unweave {__version__}")
        raise typer.Exit
    return wanted
