"""Task files with the prompts of a task."""

import json
from pathlib import Path
from typing import Any

from unweave.behaviours.file import find_task
from unweave.model.loading import load


def rows(task: str, count: int = 40, templates: int = 0) -> list[dict[str, Any]]:
    """Lines of a file; templates, if any, take turns."""
    return [
        {
            "clean": one.clean,
            "corrupted": one.corrupted,
            "answer": one.answers[0],
            "distractor": one.distractors[0],
            **({"template": f"kind {number % templates}"} if templates else {}),
        }
        for number, one in enumerate(find_task(task).prompts(load(task), count, 0, "discover"))
    ]


def task_file(path: Path, task: str, count: int = 40, templates: int = 0) -> str:
    """Writes a .jsonl file of a task's own prompts."""
    path.write_text("\n".join(map(json.dumps, rows(task, count, templates))))
    return str(path)
