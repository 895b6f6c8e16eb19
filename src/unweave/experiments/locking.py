"""Folders that one process at a time writes into: new ones, free ones, locked ones."""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from unweave.distributed import on_first
from unweave.errors import UnweaveError

_LOCK = ".lock"


def entries(folder: Path) -> list[str]:
    """What a folder holds, without the lock and what a dead process left half-written."""
    if not folder.is_dir():
        return []
    names = [path.name for path in folder.iterdir()]
    return [name for name in names if name != _LOCK and not _is_part(name)]


def check_writable(folder: Path) -> None:
    """Raises when a folder can neither be made nor written, before any work is done."""
    try:
        str(folder).encode()
    except UnicodeEncodeError:  # safetensors would refuse to read what it had written there
        raise UnweaveError(
            f"cannot write into {folder}: its name is not UTF-8; choose another folder with --out"
        ) from None
    try:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    except OSError as error:
        raise UnweaveError(
            f"cannot write into {folder}: {error.strerror}; choose another folder with --out"
        ) from error
    if not there.is_dir():
        raise UnweaveError(f"{there} is a file: choose another folder with --out")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UnweaveError(
            f"cannot write into {there}: Permission denied; choose another folder with --out"
        )


def check_out(path: Path, resume: bool) -> None:
    """Raises when a run cannot begin in a folder, nor go on there."""
    check_writable(path)
    found = entries(path)
    if found and not resume:
        raise UnweaveError(
            f"{path} is not empty: add --resume to continue, or choose another --out"
        )
    if found and not {"run.json", "state.json"} & {*found}:
        raise UnweaveError(f"{path} holds no run ({found[0]}): choose another --out")


def new_folder(task: str, model: str, seed: int, root: Path = Path("runs")) -> Path:
    """A folder that no other run has, named after the experiment and made at once."""
    name = re.sub(r"[^\w.-]+", "_", f"{task}-{Path(model).stem}")[:150]
    stem = f"{name}-seed{seed}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    for number in range(1, 1000):
        path = root / (stem if number == 1 else f"{stem}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UnweaveError(
                f"cannot write into {root}: {error.strerror}; choose another folder with --out"
            ) from error
        return path
    raise UnweaveError(f"a thousand runs named {stem} are there: choose a folder with --out")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Makes a folder and keeps it to this process; what was made goes again if it stays empty.

    Of several processes that share a run, the first has it for all.

    Raises:
        UnweaveError: When it cannot be made or written, or another process uses it.
    """
    with ExitStack() as held:
        on_first(lambda: held.enter_context(_locked(folder)))
        yield


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    check_writable(folder)
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    path = folder / _LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as error:
        raise UnweaveError(
            f"cannot write into {folder}: {error.strerror}; choose another folder with --out"
        ) from error
    with file:
        _claim(file.fileno(), path)
        try:
            for name in os.listdir(folder):
                if _is_part(name):
                    (folder / name).unlink(missing_ok=True)
            yield
        finally:
            path.unlink(missing_ok=True)
            remove_empty(*created)


def remove_empty(*folders: Path) -> None:
    """Removes folders that hold nothing, as far as they do."""
    for folder in folders:
        if not folder.is_dir() or any(folder.iterdir()):
            break
        folder.rmdir()


def _claim(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Its owner may have removed the file just before it let go of it.
        held = path.exists() and path.stat().st_ino == os.fstat(descriptor).st_ino
    except OSError:
        held = False
    if not held:
        raise UnweaveError(
            f"another process uses {path.parent}: wait for it, or choose another folder with --out"
        )


def _is_part(name: str) -> bool:
    return name.startswith(".") and name.endswith(".part")
