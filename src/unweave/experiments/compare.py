"""`compare`: methods × tasks × seeds, each cell a file as soon as it is there.

1. Names and options are checked before anything is run. 2. A cell whose file exists is read, not
run; a cell of other settings stops the comparison before anything is mixed. 3. A cell that fails is
told in the table and tried again next time; the others go on.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from unweave.behaviours.file import find_task
from unweave.errors import UnweaveError
from unweave.experiments.comparison_cells import method_cell, reference_cell
from unweave.experiments.files import plain, read_json, write_json
from unweave.experiments.locking import locked
from unweave.experiments.methods import METHODS, Method
from unweave.experiments.schema import CELL, COMPARISON, REFERENCE_CELL, check_file
from unweave.experiments.specification import Experiment, Specification
from unweave.experiments.summary import figures, row, summary
from unweave.model.model import Model

SCHEMA_VERSION = 3
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
    """A folder of finished cells.

    Args:
        fingerprints: By task, hashes of weights and task file; empty while they are not known.
    """

    folder: Path
    comparison: Comparison
    fingerprints: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def path(self, task: str, method: str, seed: int) -> Path:
        slug = re.sub(r"[^\w.-]+", "_", task)[-150:]
        return self.folder / f"{slug}--{method}--seed{seed}.json"

    def settings(self, task: str | None = None, method: Method | None = None) -> dict[str, Any]:
        """What has to be the same for two cells to stand in one table."""
        own = {"method", "score", "search", "options", "task", "seed"}
        base = {k: v for k, v in asdict(self.comparison.base).items() if k not in own}
        if method is not None:
            base["options"] = {**method.filled_score(), **method.filled_search()}
        hashes = self.fingerprints.get(task or "", {})
        base |= {f"hash of {name}": value for name, value in hashes.items()}
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
        found = cell.get("settings")
        mine, found = self.settings(task, method), found if isinstance(found, Mapping) else {}
        if other := [key for key in mine if found.get(key) != mine[key]]:
            key = other[0]
            raise UnweaveError(
                f"{path} was made with {key} = {found.get(key)!r}, now it is {mine[key]!r}: "
                "choose another --out, or delete the folder"
            )
        check_file(
            path, cell, REFERENCE_CELL if method is None else CELL, "delete it to run it again"
        )
        if {key: cell.get(key) for key in ("task", "method", "seed")} != _key(task, name, seed):
            raise UnweaveError(f"{path} holds another cell: delete it to run it again")
        return cell

    def write(
        self, task: str, name: str, method: Method | None, seed: int, cell: Mapping[str, Any]
    ) -> dict[str, Any]:
        settings = self.settings(task, method)
        whole = plain({**_key(task, name, seed), "settings": settings, **cell})
        write_json(self.path(task, name, seed), whole)
        return whole


def _key(task: str, method: str, seed: int) -> dict[str, Any]:
    return {"task": task, "method": method, "seed": seed}


def compare(
    comparison: Comparison,
    folder: Path,
    load: Callable[[str], Model],
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Runs what is not there yet, and writes and returns `compare.json`.

    Args:
        folder: Where cells are, and where new ones go.
        load: Loads the model: also of finished cells it is known whether its weights changed.
        say: Called with a line for every cell.

    Raises:
        UnweaveError: When a finished cell is broken, or has other settings, weights or prompts.
    """
    comparison = comparison.checked()
    with locked(folder):
        cells = Cells(folder, comparison)
        # Finished cells are looked at first: other settings are found before hours of work, and
        # before the model is loaded.
        _check_cells(cells)
        model = load(comparison.base.model)
        cells = replace(cells, fingerprints=_fingerprints(comparison, model))
        _check_cells(cells)
        return _table(cells, model, say)


def _check_cells(cells: Cells) -> None:
    for task in cells.comparison.tasks:
        for seed in cells.comparison.seeds:
            for name, method in _named(cells.comparison).items():
                cells.read(task, name, method, seed)


def _fingerprints(comparison: Comparison, model: Model) -> dict[str, dict[str, str]]:
    return {
        task: Experiment.set_up(replace(comparison.base, task=task), model).fingerprint
        for task in comparison.tasks
    }


def _table(cells: Cells, model: Model, say: Say) -> dict[str, Any]:
    comparison = cells.comparison
    rows, references = [], []
    for task in comparison.tasks:
        for seed in comparison.seeds:
            found = _task_cells(cells, task, seed, model, say)
            reference = found.pop(REFERENCE)
            references.append(reference)
            rows += [row(cell, reference) for cell in found.values()]
    record = plain(
        {
            "schema_version": SCHEMA_VERSION,
            "model": comparison.base.model,
            "settings": cells.settings(),
            "seeds": comparison.seeds,
            "rows": rows,
            "summary": summary(rows),
            "figures": figures(rows, references),
        }
    )
    write_json(cells.folder / "compare.json", record)
    return record


def _named(comparison: Comparison) -> dict[str, Method | None]:
    return {REFERENCE: None, **{method.name: method for method in comparison.methods}}


def _task_cells(
    cells: Cells, task: str, seed: int, model: Model, say: Say
) -> dict[str, dict[str, Any]]:
    """The reference and each method's cell, from files where they are there."""
    # Prompts and ablations are made when the first cell asks for them.
    experiment = Experiment.set_up(replace(cells.comparison.base, task=task, seed=seed), model)

    def cell(name: str, method: Method | None) -> dict[str, Any]:
        done = cells.read(task, name, method, seed)
        if done is not None:
            say(f"{task}, {name}, seed {seed}: already there")
            return done
        say(f"{task}, {name}, seed {seed}")
        try:
            if method is None:
                found = reference_cell(experiment, cells.comparison.draws)
            else:
                found = method_cell(experiment, method)
            return cells.write(task, name, method, seed, found)
        except UnweaveError as error:
            say(f"{task}, {name}, seed {seed}: {error}")
            return {**_key(task, name, seed), "error": str(error)}

    return {name: cell(name, method) for name, method in _named(cells.comparison).items()}


def read_comparison(path: Path) -> dict[str, Any]:
    """Reads what `unweave compare` wrote.

    Raises:
        UnweaveError: When it is not there or is broken.
    """
    found = read_json(path, "compare.json of unweave compare")
    check_file(path, found, COMPARISON, "compare again")
    return found
