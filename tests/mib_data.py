"""Data in the form of MIB's, in folders that stand in for the hub's, which tests cannot reach."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unweave.behaviours.file import find_task
from unweave.model.loading import load

WIRED = "wired-induction"


def wired_rows(count: int, seed: int) -> list[dict[str, Any]]:
    """Rows of which a wired model, which is fast, knows every word."""
    prompts = find_task(WIRED).prompts(load(WIRED), count, seed)
    return [
        {
            "prompt": prompt.clean,
            "label": str(prompt.answers[0]).strip(),
            "random_counterfactual": {
                "prompt": prompt.corrupted,
                "label": str(prompt.distractors[0]).strip(),
            },
        }
        for prompt in prompts
    ]


def write(folder: Path, **splits: Sequence[dict[str, Any]]) -> Path:
    """A dataset's folder: a file of JSON lines a split."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in splits.items():
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder
