"""Lines of a task file as fields by column: JSONL and CSV."""

import csv
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from unweave.behaviours.prompt import short
from unweave.errors import UnweaveError
from unweave.registry import nearest

SUFFIXES = (".jsonl", ".csv")
SEVERAL = ("answer", "answers", "distractor", "distractors")
COLUMNS = ("clean", "corrupted", *SEVERAL, "positions", "template", "text", "label")
MOST_BYTES = 200_000_000


class BadLine(NamedTuple):
    """What is wrong with a line of a task file (line 0: with the file)."""

    line: int
    reason: str


class Row(NamedTuple):
    """A line and its fields by column, or why there are none."""

    line: int
    fields: Mapping[str, Any] | BadLine


def unknown_column(name: str) -> str:
    """The error for a column that is not one of `COLUMNS`."""
    return f"unknown column {short(name)}: {nearest(name[:40], COLUMNS)}"


def read_rows(path: Path) -> Iterator[Row]:
    """The lines of a file that are not blank, as mappings."""
    if path.suffix not in SUFFIXES:
        raise UnweaveError(f"{path}: expected a file that ends in .jsonl or .csv")
    text = _content(path)
    return _csv_rows(text) if path.suffix == ".csv" else _json_rows(text)


def _content(path: Path) -> str:
    try:
        if path.exists() and not path.is_file():
            raise UnweaveError(
                f"{path} cannot be read: it is not a file, give one that ends in .jsonl or .csv"
            )
        if (size := path.stat().st_size) > MOST_BYTES:
            raise UnweaveError(
                f"{path} has {size:,} bytes and a task file at most {MOST_BYTES:,}: split it"
            )
        with path.open(encoding="utf-8-sig", newline="") as file:
            return file.read()
    except UnicodeDecodeError as error:
        raise UnweaveError(f"{path} cannot be read: not UTF-8, save it in that encoding") from error
    except OSError as error:
        raise UnweaveError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # a path with a null character
        raise UnweaveError(f"{str(path)!r} cannot be read: {error}") from error


def _json_rows(text: str) -> Iterator[Row]:
    for line, raw in enumerate(text.split("\n"), start=1):
        if not raw.strip():
            continue
        try:
            fields = json.loads(raw, object_pairs_hook=_once)
        except UnweaveError as error:
            yield Row(line, BadLine(line, str(error)))
            continue
        except (ValueError, RecursionError) as error:
            yield Row(line, BadLine(line, f"not JSON: {error}; write one object a line"))
            continue
        if isinstance(fields, dict):
            yield Row(line, fields)
        else:
            yield Row(line, BadLine(line, "expected an object {…} with clean, corrupted, …"))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, whose names must differ."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise UnweaveError(f"{short(twice)} is there twice: drop one")
    return found


def _csv_rows(text: str) -> Iterator[Row]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] | None = None
    end = 0
    while True:
        line = end + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield Row(line, BadLine(line, f"not CSV: {error}; quote texts with commas"))
            return
        end = reader.line_num
        if not any(cell.strip() for cell in cells):
            continue
        if header is None:
            header = [cell.strip() for cell in cells]
            if bad := _bad_header(header):
                yield Row(line, BadLine(line, bad))
                return
        elif len(cells) != len(header):
            reason = f"{len(cells)} fields under {len(header)} columns: quote texts with commas"
            yield Row(line, BadLine(line, reason))
        else:
            yield Row(line, _from_cells(dict(zip(header, cells, strict=True))))


def _bad_header(header: list[str]) -> str | None:
    if twice := [name for name in header if header.count(name) > 1]:
        return f"column {twice[0]!r} twice: drop one"
    unknown = [name for name in header if name not in COLUMNS]
    return unknown_column(unknown[0]) if unknown else None


def _from_cells(cells: dict[str, str]) -> dict[str, Any]:
    fields: dict[str, Any] = {name: cell for name, cell in cells.items() if cell}
    for name in ("answers", "distractors"):
        if name in fields:
            fields[name] = fields[name].split("|")
    return fields
