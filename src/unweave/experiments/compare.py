"""`compare`: all methods × tasks × seeds, each cell a file as soon as it is there.

1. Names are looked up before anything is run. 2. A cell whose file exists is read, not run; a cell
of other settings stops the comparison before anything is mixed. 3. Cells are run task by task, the
reference first, then the method that decides the size of circuits (`cdt`), then the others. 4. A
cell that fails is told in the table and tried again next time; the others go on.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from unweave.behaviours.file import find_task
from unweave.behaviours.task import Task
from unweave.errors import UnweaveError
from unweave.experiments.comparison_cells import Budget, Setting, method_cell, reference_cell
from unweave.experiments.files import read_json, write_json
from unweave.experiments.summary import figures, row, summary
from unweave.model.model import Model
from unweave.scores.problem import methods

SCHEMA_VERSION = 1
LEADER = "cdt"  # its circuit's size is the one at which all methods are compared
REFERENCE = "reference"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What to compare.

    Args:
        methods: Names; empty for all that there are.
        model: A name for `load`.
        options: By method: options that differ from its defaults.
    """

    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    model: str
    seeds: tuple[int, ...] = (0,)
    budget: Budget = field(default_factory=Budget)
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def checked(self) -> "Plan":
        """The plan with all methods filled in, the leader first.

        Raises:
            UnweaveError: For an unknown task or method, or none.
        """
        for name in self.methods:
            methods[name]  # an error that says which there are
        if not self.tasks or not self.seeds:
            raise UnweaveError("nothing to compare: name a task, such as ioi, and a seed")
        for name in self.tasks:
            find_task(name)
        names = dict.fromkeys(self.methods or methods)
        order = sorted(names, key=lambda name: name != LEADER)
        tasks, seeds = tuple(dict.fromkeys(self.tasks)), tuple(dict.fromkeys(self.seeds))
        return Plan(tasks, tuple(order), self.model, seeds, self.budget, self.options)


@dataclass(frozen=True)
class Cells:
    """A folder of finished cells."""

    folder: Path
    model: str
    budget: Budget

    def path(self, task: str, method: str, seed: int) -> Path:
        slug = re.sub(r"[^\w.-]+", "_", task)
        return self.folder / f"{slug}--{method}--seed{seed}.json"

    def settings(self) -> dict[str, Any]:
        return {"schema_version": SCHEMA_VERSION, "model": self.model, **asdict(self.budget)}

    def read(self, task: str, method: str, seed: int) -> dict[str, Any] | None:
        """A finished cell, or None.

        Raises:
            UnweaveError: When the file is broken, or was made with other settings.
        """
        path = self.path(task, method, seed)
        if not path.exists():
            return None
        cell = read_json(path, "a finished cell of unweave compare; delete it to run it again")
        mine, found = self.settings(), cell.get("settings", {})
        if other := [name for name in mine if found.get(name) != mine[name]]:
            name = other[0]
            raise UnweaveError(
                f"{path} was made with {name} = {found.get(name)!r}, now it is {mine[name]!r}: "
                "choose another --out, or delete the folder"
            )
        return cell

    def write(self, task: str, method: str, seed: int, cell: Mapping[str, Any]) -> dict[str, Any]:
        key = {"task": task, "method": method, "seed": seed}
        whole = {**key, "settings": self.settings(), **cell}
        write_json(self.path(task, method, seed), whole)
        return whole


def compare(
    plan: Plan, folder: Path, load: Callable[[str], Model], say: Say = lambda line: None
) -> dict[str, Any]:
    """Runs what is not there yet, and writes and returns `compare.json`.

    Args:
        folder: Where cells are, and where new ones go.
        load: Loads the model, when a cell has to be run.
        say: Told about every cell.
    """
    plan = plan.checked()
    cells = Cells(folder, plan.model, plan.budget)
    _check_folder(folder)
    # All finished cells are looked at first: settings that differ are told before hours of work.
    for task in plan.tasks:
        for seed in plan.seeds:
            for name in (REFERENCE, *plan.methods):
                cells.read(task, name, seed)
    models: list[Model] = []

    def model() -> Model:
        if not models:
            models.append(load(plan.model))
        return models[0]

    rows, references = [], []
    for task in plan.tasks:
        found = find_task(task)
        for seed in plan.seeds:
            reference, new = _task_cells(plan, cells, found, task, seed, model, say)
            references.append(reference)
            rows += new
    record = {
        "schema_version": SCHEMA_VERSION,
        "model": plan.model,
        "budget": asdict(plan.budget),
        "seeds": plan.seeds,
        "rows": rows,
        "summary": summary(rows),
        "figures": figures(rows, references),
    }
    write_json(folder / "compare.json", record)
    return record


def _task_cells(
    plan: Plan,
    cells: Cells,
    task: Task,
    name: str,
    seed: int,
    model: Callable[[], Model],
    say: Say,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The reference and one row for each method, from files where they are there."""
    settings: list[Setting] = []

    def setting() -> Setting:
        if not settings:
            settings.append(Setting(task, model(), seed, plan.budget))
        return settings[0]

    def cell(method: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        done = cells.read(name, method, seed)
        if done is not None:
            say(f"{name}, {method}, seed {seed}: already there")
            return done
        say(f"{name}, {method}, seed {seed}")
        try:
            return cells.write(name, method, seed, make())
        except UnweaveError as error:
            say(f"{name}, {method}, seed {seed}: {error}")
            return {"task": name, "method": method, "seed": seed, "error": str(error)}

    reference = cell(REFERENCE, lambda: reference_cell(setting()))
    rows, size = [], None
    for method in plan.methods:
        options = plan.options.get(method, {})
        wanted = size

        def make(method: str = method, options=options, wanted=wanted) -> dict[str, Any]:
            return method_cell(setting(), methods[method], options, wanted)

        found = cell(method, make)
        if method == LEADER and "error" not in found:
            size = len(found["circuit"])
        rows.append(row(found, reference, size))
    return reference, rows


def _check_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise UnweaveError(f"{folder} is a file: --out names a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnweaveError(f"{folder} cannot be made: {error.strerror}") from error


def methods_named(text: Sequence[str] | str) -> tuple[str, ...]:
    """Method names from "a,b,c"."""
    names = text.split(",") if isinstance(text, str) else text
    return tuple(name.strip() for name in names if name.strip())
