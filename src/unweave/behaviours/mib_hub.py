"""MIB's datasets on the Hugging Face hub as tasks, by their names there: mib-bench/ioi.

1. The package `datasets` loads the splits `train` and `validation`, from the hub or its own cache;
   a folder of that name in the current one is read in place of the hub.
2. Rows become prompts, as in a file (see `mib_rows.py`). A row without a usable counterfactual, or
   with a prompt that was there before, is left out, and the task's summary says how many are.
3. Circuits are found on `train` and measured on `validation`, as MIB's scripts do by default:
   discovery, check and reference share the first, evaluation has the second. A row of `validation`
   with a pair of texts that `train` has is left out.
4. A row that a model's tokenizer cannot take (an answer of several tokens) is left out as prompts
   are drawn. MIB does so too: nobody can mend the rows of a benchmark.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from typing import Any, NamedTuple

from unweave.behaviours.encoding import encode
from unweave.behaviours.mib_rows import is_mib_row, mib_prompt
from unweave.behaviours.prompt import Prompt
from unweave.behaviours.sampling import PARTS, Part, Sampler, listed
from unweave.behaviours.task import Task
from unweave.behaviours.words import Words
from unweave.errors import UnweaveError
from unweave.metrics import LOGIT_DIFFERENCE
from unweave.registry import nearest

OWNER = "mib-bench/"
SPLITS = ("train", "validation")


class Dataset(NamedTuple):
    """What MIB calls the task of a dataset, and which configuration its circuit track takes."""

    task: str
    config: str | None = None


DATASETS: Mapping[str, Dataset] = {
    "mib-bench/ioi": Dataset("ioi"),
    "mib-bench/copycolors_mcqa": Dataset("mcqa", "4_answer_choices"),
    "mib-bench/arithmetic_addition": Dataset("arithmetic_addition"),
    "mib-bench/arithmetic_subtraction": Dataset("arithmetic_subtraction"),
    "mib-bench/arc_easy": Dataset("arc_easy"),
    "mib-bench/arc_challenge": Dataset("arc_challenge"),
}


class _Loaded(NamedTuple):
    """The prompts of both splits, without those that are left out, and how many rows there are."""

    train: tuple[Prompt, ...]
    validation: tuple[Prompt, ...]
    rows: int


def hub_task(name: str, first_token: bool = False) -> Task:
    """One of MIB's datasets as a task.

    Args:
        name: On the hub, such as "mib-bench/ioi".
        first_token: Whether the first token of a longer answer stands for it.

    Raises:
        UnweaveError: For an unknown name, or when the dataset cannot be loaded or used.
    """
    if name not in DATASETS:
        raise UnweaveError(f"unknown MIB dataset {name!r}: {nearest(name, DATASETS)}")
    train, validation, rows = _load(name)
    sampler, sizes = listed(train, held_out=validation)
    left_out = rows - len(train) - len(validation)
    return Task(
        name,
        f"{len(train)} prompts to find on and {len(validation)} to evaluate on, from the splits "
        f"{' and '.join(SPLITS)} of {name} ({left_out} of {rows} rows are left out)",
        LOGIT_DIFFERENCE,
        _fitting(name, sampler, first_token),
        first_token=first_token,
        sizes=sizes,
        digest=_digest(train, validation),
    )


@cache  # a command looks its task up several times
def _load(name: str) -> _Loaded:
    train, validation = _splits(name)
    found = _prompts(train)
    pairs = {prompt.key for prompt in found}
    others = tuple(prompt for prompt in _prompts(validation) if prompt.key not in pairs)
    if len({prompt.key for prompt in found}) < len(PARTS) - 1 or not others:
        raise UnweaveError(
            f"{name} has {len(found)} usable rows of {len(train)} in train and {len(others)} of "
            f"{len(validation)} in validation, expected 3 and 1 or more: write others into a "
            ".jsonl file"
        )
    return _Loaded(found, others, len(train) + len(validation))


def _splits(name: str) -> tuple[list[dict[str, Any]], ...]:
    """The rows of each split."""
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise UnweaveError(
            f"{name} is loaded by datasets, which is not installed: pip install 'unweave[mib]'"
        ) from error
    try:
        splits: Any = load_dataset(name, DATASETS[name].config, split=list(SPLITS))
    except ConnectionError as error:
        raise UnweaveError(
            f"{name} is not on this machine and the Hugging Face hub cannot be reached: go online "
            "once, or give a .jsonl file with its rows"
        ) from error
    except Exception as error:  # what else it raises belongs to its readers and its HTTP library
        raise UnweaveError(
            f"{name} cannot be loaded ({type(error).__name__}: {error}): give a .jsonl file with "
            "its rows"
        ) from error
    return tuple(split.to_list() for split in splits)


def _prompts(rows: Sequence[Mapping[str, Any]]) -> tuple[Prompt, ...]:
    """The prompts of rows that can be used, one for each clean text."""
    found: dict[str, Prompt] = {}
    for row in rows:
        try:
            prompt = mib_prompt(row) if is_mib_row(row) else None
        except UnweaveError:
            continue
        if prompt is not None:
            found.setdefault(prompt.clean, prompt)
    return tuple(found.values())


def _fitting(name: str, sampler: Sampler, first_token: bool) -> Sampler:
    """Those prompts that a model's tokenizer can take."""

    def sample(words: Words, seed: int, part: Part) -> Iterator[Prompt]:
        reason, found = "", False
        for prompt in sampler(words, seed, part):
            try:
                encode(words, prompt, first_token=first_token)
            except UnweaveError as error:
                reason = reason or str(error)
            else:
                found = True
                yield prompt
        if reason and not found:
            raise UnweaveError(
                f"no row of {name} can be used with {words.model.name}: choose another model; of "
                f"the first, {reason}"
            )

    return sample


def _digest(*splits: Sequence[Prompt]) -> str:
    """A hash of what the rows hold: those on the hub may change."""
    texts = [
        [(p.clean, p.corrupted, p.answers, p.distractors, p.template) for p in split]
        for split in splits
    ]
    return blake2b(json.dumps(texts).encode(), digest_size=8).hexdigest()
