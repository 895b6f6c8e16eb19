"""Rows of MIB's datasets (Mueller et al., 2025) as prompts: a task file may hold them as they are.

A row has `prompt`, its right answer and counterfactuals, each an object with a prompt and an answer
of its own:

    {"prompt": "When Mary and John …", "choices": ["John", "Mary"], "answerKey": 1,
     "s2_io_flip_counterfactual": {"prompt": …, "choices": …, "answerKey": 0}}

The corrupted prompt is the counterfactual's and the distractor its answer. Answers are an entry of
`choices` (a list, or `label` of its object) at `answerKey`, or `label` (arithmetic); they get a
space in front unless the prompt ends in one.
"""

from collections.abc import Mapping
from typing import Any

from unweave.behaviours.prompt import Prompt, short
from unweave.errors import UnweaveError

_SUFFIX = "_counterfactual"
# MIB's circuit track takes these for IOI, multiple choice and arithmetic.
_DEFAULTS = ("s2_io_flip", "symbol", "random")


def is_mib_row(fields: Mapping[str, Any]) -> bool:
    """Whether a line of a file is a row of a MIB dataset."""
    return "prompt" in fields and any(name.endswith(_SUFFIX) for name in fields)


def mib_prompt(fields: Mapping[str, Any]) -> Prompt:
    """The prompt of a row, with the counterfactual that MIB's circuit track takes, else the first.

    Raises:
        UnweaveError: For a row without a usable prompt or answer.
    """
    names = [name for name in fields if name.endswith(_SUFFIX)]
    wanted = [f"{name}{_SUFFIX}" for name in _DEFAULTS]
    chosen = next((name for name in wanted if name in names), names[0])
    other = fields[chosen]
    if not isinstance(other, Mapping):
        raise UnweaveError(f"{chosen} is {short(other)}: expected an object with a prompt")
    clean, corrupted = _text(fields, "the row"), _text(other, chosen)
    answer, distractor = _answer(fields, clean, "the row"), _answer(other, corrupted, chosen)
    if answer == distractor:
        raise UnweaveError(
            f"answer and distractor are both {short(answer)}: drop the row, its counterfactual "
            "asks for the same"
        )
    template = fields.get("template")
    template = template if isinstance(template, str) else ""
    pair = "\n".join(sorted((clean, corrupted)))
    return Prompt(clean, corrupted, (answer,), (distractor,), template, {}, pair)


def _text(row: Mapping[str, Any], where: str) -> str:
    value = row.get("prompt")
    if not isinstance(value, str):
        raise UnweaveError(f"prompt of {where} is {short(value)}: expected a text")
    return value


def _answer(row: Mapping[str, Any], prompt: str, where: str) -> str:
    found, key = row.get("choices"), row.get("answerKey")
    if isinstance(found, Mapping):
        found = found.get("label")
    if isinstance(found, list) and type(key) is int and 0 <= key < len(found):
        value = found[key]
    else:
        value = row.get("label")
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise UnweaveError(
            f"{where} has no answer: expected choices with answerKey, or label; found "
            f"{short(found)} at {short(key)}"
        )
    text = str(value).strip()
    return text if prompt[-1:].isspace() else f" {text}"
