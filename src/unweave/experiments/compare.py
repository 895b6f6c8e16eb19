"""`compare`: methods × tasks × seeds, each cell a file as soon as it is there.

1. Names and options are checked before anything is run. 2. A cell whose file exists is read, not
run; a cell of other settings stops the comparison before anything is mixed. 3. A cell that fails is
told in the table and tried again next time; the others go on.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from unweave.behaviours.file import find_task
from unweave.errors import UnweaveError
from unweave.experiments.comparison_cells import method_cell, reference_cell
from unweave.experiments.files import plain, read_json, write_json
from unweave.experiments.methods import METHODS, Method
from unweave.experiments.specification import Experiment, Specification
from unweave.experiments.summary import figures, row, summary
from unweave.model.model import Model

SCHEMA_VERSION = 2
REFERENCE = "reference"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Comparison:
    """What to compare.

    Args:
        methods: Pairs of score and search; empty for all named ones.
        base: Everything that all cells share; its task, seed and method do not matter.
        draws: Random circuits of each size.
    """

    tasks: tuple[str, ...]
    base: Specification
    methods: tuple[Method, ...] = ()
    seeds: tuple[int, ...] = (0,)
    draws: int = 10

    def checked(self) -> "Comparison":
        """With all methods filled in, nothing twice.

        Raises:
            UnweaveError: For an unknown task, or none.
        """
        if not self.tasks or not self.seeds:
            raise UnweaveError("nothing to compare: name a task, such as ioi, and a seed")
        for name in self.tasks:
            find_task(name, self.base.first_token)
        methods = {method.name: method for method in self.methods or METHODS.values()}
        tasks, seeds = tuple(dict.fromkeys(self.tasks)), tuple(dict.fromkeys(self.seeds))
        return replace(self, tasks=tasks, seeds=seeds, methods=tuple(methods.values()))


@dataclass(frozen=True)
class Cells:
    """A folder of finished cells."""

    folder: Path
    comparison: Comparison

    def path(self, task: str, method: str, seed: int) -> Path:
        slug = re.sub(r"[^\w.-]+", "_", task)
        return self.folder / f"{slug}--{method}--seed{seed}.json"

    def settings(self, method: Method | None) -> dict[str, Any]:
        """What has to be the same for two cells to stand in one table."""
        own = {"method", "score", "search", "options", "task", "seed"}
        base = {k: v for k, v in asdict(self.comparison.base).items() if k not in own}
        if method is not None:
            base["options"] = {**method.filled_score(), **method.filled_search()}
        return plain({"schema_version": SCHEMA_VERSION, **base, "draws": self.comparison.draws})

    def read(self, task: str, name: str, method: Method | None, seed: int) -> dict | None:
        """A finished cell, or None.

        Raises:
            UnweaveError: When the file is broken, or was made with other settings.
        """
        path = self.path(task, name, seed)
        if not path.exists():
            return None
        cell = read_json(path, "a finished cell of unweave compare; delete it to run it again")
        mine, found = self.settings(method), cell.get("settings", {})
        if not isinstance(found, Mapping):
            found = {}
        if other := [key for key in mine if found.get(key) != mine[key]]:
            key = other[0]
            raise UnweaveError(
                f"{path} was made with {key} = {found.get(key)!r}, now it is {mine[key]!r}: "
                "choose another --out, or delete the folder"
            )
        return cell

    def write(
        self, task: str, name: str, method: Method | None, seed: int, cell: Mapping[str, Any]
    ) -> dict[str, Any]:
        key = {"task": task, "method": name, "seed": seed}
        whole = {**key, "settings": self.settings(method), **cell}
        write_json(self.path(task, name, seed), whole)
        return whole


def compare(
    comparison: Comparison,
    folder: Path,
    load: Callable[[str], Model],
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Runs what is not there yet, and writes and returns `compare.json`.

    Args:
        folder: Where cells are, and where new ones go.
        load: Loads the model, when a cell has to be run.
        say: Told about every cell.
    """
    comparison = comparison.checked()
    cells, named = Cells(folder, comparison), _named(comparison)
    _check_folder(folder)
    # All finished cells are looked at first: settings that differ are told before hours of work.
    for task in comparison.tasks:
        for seed in comparison.seeds:
            for name, method in named.items():
                cells.read(task, name, method, seed)
    models: list[Model] = []

    def model() -> Model:
        if not models:
            models.append(load(comparison.base.model))
        return models[0]

    rows, references = [], []
    for task in comparison.tasks:
        for seed in comparison.seeds:
            found = _task_cells(cells, task, seed, model, say)
            reference = found.pop(REFERENCE)
            references.append(reference)
            rows += [row(cell, reference) for cell in found.values()]
    record = {
        "schema_version": SCHEMA_VERSION,
        "model": comparison.base.model,
        "settings": cells.settings(None),
        "seeds": comparison.seeds,
        "rows": rows,
        "summary": summary(rows),
        "figures": figures(rows, references),
    }
    write_json(folder / "compare.json", record)
    return record


def _named(comparison: Comparison) -> dict[str, Method | None]:
    return {REFERENCE: None, **{method.name: method for method in comparison.methods}}


def _task_cells(
    cells: Cells, task: str, seed: int, model: Callable[[], Model], say: Say
) -> dict[str, dict[str, Any]]:
    """The reference and each method's cell, from files where they are there."""
    experiments: list[Experiment] = []

    def experiment() -> Experiment:
        if not experiments:
            how = replace(cells.comparison.base, task=task, seed=seed)
            experiments.append(Experiment.set_up(how, model()))
        return experiments[0]

    def cell(name: str, method: Method | None) -> dict[str, Any]:
        done = cells.read(task, name, method, seed)
        if done is not None:
            say(f"{task}, {name}, seed {seed}: already there")
            return done
        say(f"{task}, {name}, seed {seed}")
        try:
            if method is None:
                made = reference_cell(experiment(), cells.comparison.draws)
            else:
                made = method_cell(experiment(), method)
            return cells.write(task, name, method, seed, made)
        except UnweaveError as error:
            say(f"{task}, {name}, seed {seed}: {error}")
            return {"task": task, "method": name, "seed": seed, "error": str(error)}

    return {name: cell(name, method) for name, method in _named(cells.comparison).items()}


def _check_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise UnweaveError(f"{folder} is a file: --out names a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnweaveError(f"{folder} cannot be made: {error.strerror}") from error
