"""Your own task, without code: one prompt a line, as JSONL or CSV.

Columns: `clean`, `corrupted`, `answer` or `answers`, `distractor` or `distractors`, and if wanted
`positions` (a name and the characters [start, end], or a piece of the clean text) and `template`
(prompts of one template and length align token by token):

    {"clean": "The capital of France is", "corrupted": "The capital of Spain is",
     "answer": " Paris", "distractor": " Madrid", "positions": {"country": "France"}}

In a CSV file several answers are separated by "|", and `positions` is written as JSON. For a
classifier, the columns are `text`, `label` and if wanted `corrupted` (see `classes.py`). Rows of
MIB's datasets are read as they are (see `mib_rows.py`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from unweave.behaviours.classes import pair_up, read_labelled
from unweave.behaviours.encoding import encode
from unweave.behaviours.mib_hub import OWNER, hub_task
from unweave.behaviours.mib_rows import is_mib_row, mib_prompt
from unweave.behaviours.prompt import OTHERS, Answer, Prompt, Span, short
from unweave.behaviours.rows import COLUMNS, SUFFIXES, BadLine, read_rows, unknown_column
from unweave.behaviours.sampling import kept_templates, listed
from unweave.behaviours.task import Task, synthetic_tasks, tasks
from unweave.behaviours.words import Words, continues
from unweave.errors import UnweaveError
from unweave.metrics import LOGIT_DIFFERENCE, MARGIN, Metric
from unweave.model.model import Model


def find_task(
    name: str | Path, first_token: bool = False, only_correct: bool | None = None
) -> Task:
    """A registered task by its name, the task in a .jsonl or .csv file, or a dataset of MIB.

    Args:
        name: Name or path; a dataset has its name on the Hugging Face hub, mib-bench/ioi.
        first_token: Whether the first token of a longer answer stands for it.
        only_correct: Whether to keep only the prompts that the model answers correctly; as the
            task has it unless given.

    Raises:
        UnweaveError: For an unknown name, with the nearest ones, or a file with bad lines.
    """
    path = Path(name)
    if path.suffix in SUFFIXES:
        found = read_task(path)
    elif str(name) in synthetic_tasks:
        found = synthetic_tasks[str(name)]
    elif str(name).startswith(OWNER):
        found = hub_task(str(name), first_token)
    elif str(name) not in tasks and (path.suffix or len(path.parts) > 1):
        raise UnweaveError(f"{name}: a task is a name or a file that ends in .jsonl or .csv")
    else:
        found = tasks[str(name)]
    strict = found.only_correct if only_correct is None else only_correct
    if (first_token, strict) == (found.first_token, found.only_correct):
        return found
    return replace(found, first_token=first_token, only_correct=strict)


def read_task(
    path: str | Path, metric: Metric = LOGIT_DIFFERENCE, first_token: bool = False
) -> Task:
    """Reads a task file.

    Raises:
        UnweaveError: For the first bad line; `validate` reports all.
    """
    path = Path(path)
    prompts, problems = read_prompts(path)
    if problems:
        line, reason = problems[0]
        where = f"{path} line {line}" if line else str(path)
        more = f" ({len(problems) - 1} more: unweave tasks validate {path})"
        raise UnweaveError(f"{where}: {reason}{more if len(problems) > 1 else ''}")
    return replace(as_task(path, prompts, metric), first_token=first_token)


def as_task(
    path: Path, lines: Sequence[tuple[int, Prompt]], metric: Metric = LOGIT_DIFFERENCE
) -> Task:
    """The prompts of a file as a task."""
    prompts = [prompt for _, prompt in lines]
    labelled = prompts[0].distractors == (OTHERS,)
    new = kept_templates(prompts)
    sampler, sizes = listed(prompts, new)
    return Task(
        path.stem,
        f"{len(prompts)} prompts from {path.name}",
        MARGIN if labelled else metric,
        sampler,
        new_templates=new,
        sizes=sizes,
        lines=tuple(lines),
        digest=blake2b(path.read_bytes(), digest_size=8).hexdigest(),
    )


def bad_lines(
    path: str | Path, model: Model | None = None, first_token: bool = False
) -> list[BadLine]:
    """Every bad line of a task file, with its number and the reason.

    Args:
        path: The file.
        model: Given, its tokenizer is used to check answers and positions too.
        first_token: Whether the first token of a longer answer may stand for it.
    """
    prompts, problems = read_prompts(Path(path))
    return sorted([*problems, *not_encoded(prompts, model, first_token)] if model else problems)


def not_encoded(
    prompts: Sequence[tuple[int, Prompt]], model: Model, first_token: bool = False
) -> list[BadLine]:
    """The lines that a model's tokenizer cannot take, with the reason."""
    words, found = Words(model), []
    for line, prompt in prompts:
        try:
            encode(words, prompt, first_token=first_token)
        except UnweaveError as error:
            found.append(BadLine(line, str(error)))
    return found


def read_prompts(path: Path) -> tuple[list[tuple[int, Prompt]], list[BadLine]]:
    """The prompts of a file by line, and what is wrong with the other lines or the file."""
    prompts, problems, first_seen = [], [], {}
    for line, found in _lines(path):
        if isinstance(found, BadLine):
            problems.append(found)
            continue
        if found.clean in first_seen:
            reason = f"the clean text of line {first_seen[found.clean]} again: drop one"
            problems.append(BadLine(line, reason))
        first_seen.setdefault(found.clean, line)
        prompts.append((line, found))
    keys = {prompt.key for _, prompt in prompts}
    if not problems and len(keys) < 4:
        found = f"{len(keys)} prompts in the file" if prompts else "the file is empty"
        remedy = "discovery, check, evaluation and reference need one each, write 4 or more"
        problems.append(BadLine(0, f"{found}: {remedy}"))
    return prompts, problems


def _lines(path: Path) -> list[tuple[int, "Prompt | BadLine"]]:
    """Each line's prompt, or what is wrong with it. Lines with labels need each other."""
    found: list[tuple[int, Prompt | BadLine]] = []
    labelled = []
    for line, fields in read_rows(path):
        try:
            if isinstance(fields, BadLine):
                found.append((line, fields))
            elif is_mib_row(fields):
                found.append((line, mib_prompt(fields)))
            elif "text" in fields or "label" in fields:
                labelled.append(read_labelled(line, fields))
            else:
                found.append((line, _prompt(fields)))
        except UnweaveError as error:
            found.append((line, BadLine(line, str(error))))
    if labelled and (plain := [line for line, one in found if isinstance(one, Prompt)]):
        reason = f"text and label, but line {plain[0]} has clean and answer: keep to one kind"
        return [*found, (labelled[0].line, BadLine(labelled[0].line, reason))]
    paired, failed = pair_up(labelled)
    found += [(line, BadLine(line, reason)) for line, reason in failed]
    return sorted([*found, *paired], key=lambda one: one[0])


def _prompt(fields: Mapping[str, Any]) -> Prompt:
    for name in fields:
        if name not in COLUMNS:
            raise UnweaveError(unknown_column(name))
    clean, corrupted = _text(fields, "clean"), _text(fields, "corrupted")
    template = _text(fields, "template") if "template" in fields else ""
    answers, distractors = _several(fields, "answer"), _several(fields, "distractor")
    for text in (*answers, *distractors):
        if isinstance(text, str) and continues(clean, text):
            raise UnweaveError(
                f"{text!r} would continue the last word of the clean text: begin it with a space, "
                f"{' ' + text!r}"
            )
    spans = _spans(fields.get("positions", {}), clean)
    pair = "\n".join(sorted((clean, corrupted)))
    return Prompt(clean, corrupted, answers, distractors, template, spans, pair)


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if value is None:
        raise UnweaveError(f"{name!r} is missing: add it")
    if not isinstance(value, str):
        raise UnweaveError(f"{name} is {short(value)}: expected a text")
    return value


def _several(fields: Mapping[str, Any], name: str) -> tuple[Answer, ...]:
    given = [column for column in (name, f"{name}s") if column in fields]
    if len(given) != 1:
        found = "both are there" if given else "neither is there"
        raise UnweaveError(f"expected {name!r} or {name + 's'!r}: {found}")
    value = fields[given[0]]
    values = value if isinstance(value, list) else [value]
    for item in values:
        if not isinstance(item, str | int) or isinstance(item, bool):
            raise UnweaveError(f"{given[0]} {short(item)}: expected a text or a token id")
    return tuple(values)


def _spans(value: Any, clean: str) -> dict[str, Span]:
    try:
        positions = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise UnweaveError(
            f"positions is not JSON ({error}): expected names with [start, end] or text"
        ) from error
    if not isinstance(positions, dict):
        raise UnweaveError(
            f"positions is {short(positions)}: expected names with [start, end] or text"
        )
    return {name: _span(name, where, clean) for name, where in positions.items()}


def _span(name: str, where: Any, clean: str) -> Span:
    if isinstance(where, str):
        count = clean.count(where) if where else 0
        if count != 1:
            raise UnweaveError(
                f"position {name!r}: {short(where)} is {count} times in the clean text; give "
                "[start, end]"
            )
        start = clean.index(where)
        return start, start + len(where)
    if not (isinstance(where, list) and len(where) == 2 and all(type(end) is int for end in where)):
        raise UnweaveError(f"position {name!r} is {short(where)}: expected [start, end] or a text")
    return where[0], where[1]
