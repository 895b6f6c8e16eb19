"""Every bad input of the tables: exit code 2, one line, nothing written."""

import importlib
import os
import pkgutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import pytest
from bad_input.case import Case
from oracles.rights import nobody

import unweave
from unweave import cli

SECONDS = 30  # a hang is a failure too


def tables() -> Iterator[tuple[str, Case]]:
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if not module.name.startswith("test_"):
            table = importlib.import_module(f"bad_input.{module.name}")
            yield from ((module.name, case) for case in getattr(table, "CASES", ()))


FOUND = list(tables())


class Hang(BaseException):
    """No `except Exception` may take it for a damaged file, and the case for one that is fine."""


@pytest.fixture
def alarm() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Hang(f"still running after {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@contextmanager
def without_rights(folder: Path) -> Iterator[None]:
    """As nobody, to whom the folders around this one are open, and who may not import from root's
    site-packages: what a command imports is there before."""
    (folder / "work").chmod(0o777)
    # pytest-of-root, and the folder of a worker of xdist if there is one.
    for around in (folder, *folder.parents):
        if around.stat().st_mode & 0o007 == 0:
            around.chmod(0o755)
    own = (module.name for module in pkgutil.walk_packages(unweave.__path__, "unweave."))
    for name in ("rich.console", "rich.table", *own):
        if not name.endswith("__main__"):
            with suppress(ImportError):  # of a GPU's packages
                importlib.import_module(name)
    with nobody():
        yield


def content(folder: Path) -> dict[str, bytes | None]:
    """Every path below a folder, with the bytes of files."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        if path.is_file() and os.access(path, os.R_OK)
        else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize(
    "case", [case for _, case in FOUND], ids=[f"{table}: {case.name}" for table, case in FOUND]
)
def test_bad_input(
    case: Case,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    alarm: None,
) -> None:
    for name in ("bad", "work"):
        (tmp_path / name).mkdir()
    case.make(tmp_path / "bad")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("UNWEAVE_CACHE", str(tmp_path / "work" / "cache"))
    before = content(tmp_path)
    capsys.readouterr()
    with without_rights(tmp_path) if case.nobody else nullcontext():
        code = cli.main(case.args(tmp_path / "bad"))
    printed = capsys.readouterr()
    assert code == 2, printed
    lines = printed.err.splitlines()
    assert len(lines) == 1, printed.err
    assert lines[0].startswith("error: ")
    assert case.says in lines[0]
    assert printed.out == ""
    written = content(tmp_path)
    written.pop("work/cache", None)  # the folder itself, empty
    assert written == before


def test_names_are_unique() -> None:
    names = [(table, case.name) for table, case in FOUND]
    assert len(names) == len({*names})
    assert len(names) >= 250
