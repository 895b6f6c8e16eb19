"""Results as files: written whole or not at all, read with an error that names the file."""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError

from unweave.distributed import ranks
from unweave.errors import UnweaveError

S = TypeVar("S")

# What reading a tensor file that somebody else wrote may raise.
BROKEN = (
    OSError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    SafetensorError,
    UnweaveError,
)


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Writes beside the file and renames: a killed run leaves no half of it.

    A link stays a link. A device or a pipe (/dev/stdout) is written to and never replaced. Of
    several processes that share a run, the first writes.

    Args:
        write: Writes the file that it is given.

    Raises:
        UnweaveError: When the disk is full, or the folder cannot be written.
    """
    if not ranks().first:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file():
            write(path)
            return
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            part.touch()
            rights = part.stat().st_mode
            write(part)
            part.chmod(rights)  # safetensors closes its files to all other users
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except (OSError, SafetensorError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise UnweaveError(
            f"cannot write {path}: {reason}; make room or choose another folder, then give the "
            "same command again (discover with --resume)"
        ) from error


def write_text(path: Path, text: str) -> None:
    """Writes a text whole or not at all; what UTF-8 cannot hold becomes a question mark."""
    write_whole(path, lambda part: part.write_text(text, "utf-8", errors="replace"))


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Writes an object whole or not at all, NaN and infinities as null."""
    text = json.dumps(plain(record), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    # A path of odd bytes holds what UTF-8 cannot; the escape is JSON's own, and is read back.
    write_whole(path, lambda part: part.write_text(text, "utf-8", errors="backslashreplace"))


def read_json(path: Path, what: str) -> dict[str, Any]:
    """Reads an object.

    Args:
        what: What the file should be, for errors ("a run of unweave discover").

    Raises:
        UnweaveError: When the file is not there or is not JSON object.
    """
    try:
        record = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise UnweaveError(f"{path} is not there: expected {what}") from None
    except OSError as error:
        raise UnweaveError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # also bytes that are no text, numbers too long
        raise UnweaveError(f"{path} is not JSON ({error}): expected {what}") from error
    if not isinstance(record, dict):
        raise UnweaveError(f"{path} holds a {type(record).__name__}: expected {what}")
    return record


def read_checked(path: Path, load: Callable[[Path], S], check: Callable[[S], None]) -> S | None:
    """Scores of a file; None where there is none.

    Args:
        check: Raises for scores that do not fit each other.

    Raises:
        UnweaveError: When the file is broken.
    """
    if not path.exists():
        return None
    try:
        scores = load(path)
        check(scores)
    except BROKEN as error:
        raise UnweaveError(
            f"{path} cannot be read ({error}): delete it, and discover again to have scores"
        ) from error
    return scores


def plain(value: Any) -> Any:
    """What JSON can hold: tuples as lists, NaN and infinities as null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, str):
        return [plain(item) for item in value]
    return value
