"""`compare`: methods × tasks × seeds, each result a file as soon as it is there.

1. Names and options are checked before anything is run. 2. A result whose file exists is read,
not run again; one of other settings stops the comparison before anything is mixed. 3. A method that
fails is named in the table with its error and run again next time; the others go on. 4. With an
executor, results are computed by its workers, which share nothing but the folder; one whose worker
died is computed again.
"""

import gc
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from unweave.asked import ask_memory, ask_precision, asked_memory, asked_precision, preferred
from unweave.behaviours.file import find_task
from unweave.distributed import on_first
from unweave.errors import UnweaveError
from unweave.experiments.comparison_results import method_result, reference_result
from unweave.experiments.edge_experiment import EdgeExperiment
from unweave.experiments.executors import Submits, outcomes
from unweave.experiments.files import plain, read_json, write_json
from unweave.experiments.locking import locked
from unweave.experiments.methods import METHODS, Method
from unweave.experiments.schema import COMPARISON, REFERENCE_RESULT, RESULT, check_file
from unweave.experiments.specification import Experiment, Specification, check_seed
from unweave.experiments.summary import figures, row, summary
from unweave.model.loading import load as load_model
from unweave.model.model import Model

SCHEMA_VERSION = 3
REFERENCE = "reference"
Say = Callable[[str], None]
Load = Callable[[str], Model]


@dataclass(frozen=True)
class Comparison:
    """What to compare.

    Args:
        methods: Pairs of score and search; empty for all named ones.
        base: Everything that all results share; its task, seed and method do not matter.
        draws: Random circuits of each size.
    """

    tasks: tuple[str, ...]
    base: Specification
    methods: tuple[Method, ...] = ()
    seeds: tuple[int, ...] = (0,)
    draws: int = 10

    def __post_init__(self) -> None:
        for seed in self.seeds:
            check_seed(seed)

    def checked(self) -> "Comparison":
        """With all methods filled in, nothing twice.

        Raises:
            UnweaveError: For an unknown task, or none.
        """
        if not self.tasks or not self.seeds:
            raise UnweaveError("nothing to compare: name a task, such as ioi, and a seed")
        for name in self.tasks:
            find_task(name, self.base.first_token)
        methods = {method.name: method for method in self.methods or self._all()}
        tasks, seeds = tuple(dict.fromkeys(self.tasks)), tuple(dict.fromkeys(self.seeds))
        return replace(self, tasks=tasks, seeds=seeds, methods=tuple(methods.values()))

    def _all(self) -> list[Method]:
        """Every named method that finds what circuits are made of."""
        edges = self.base.level == "edge"
        return [method for method in METHODS.values() if method.finds_edges or not edges]


@dataclass(frozen=True)
class Results:
    """A folder of finished results.

    Args:
        fingerprints: By task, hashes of model, prompts and task file; empty until they are known.
    """

    folder: Path
    comparison: Comparison
    fingerprints: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def path(self, task: str, method: str, seed: int) -> Path:
        slug = re.sub(r"[^\w.-]+", "_", task)[-150:]
        return self.folder / f"{slug}--{method}--seed{seed}.json"

    def settings(self, task: str | None = None, method: Method | None = None) -> dict[str, Any]:
        """What has to be the same for two results to stand in one table."""
        own = {"method", "score", "search", "options", "task", "seed"}
        base = {k: v for k, v in asdict(self.comparison.base).items() if k not in own}
        if method is not None:
            base["options"] = {**method.filled_score(), **method.filled_search()}
        hashes = self.fingerprints.get(task or "", {})
        base |= {f"hash of {name}": value for name, value in hashes.items()}
        return plain({"schema_version": SCHEMA_VERSION, **base, "draws": self.comparison.draws})

    def read(self, task: str, name: str, method: Method | None, seed: int) -> dict | None:
        """A finished result, or None.

        Raises:
            UnweaveError: When the file is broken, or was made with other settings.
        """
        path = self.path(task, name, seed)
        if not path.exists():
            return None
        result = read_json(path, "a finished result of unweave compare; delete it to run it again")
        found = result.get("settings")
        mine, found = self.settings(task, method), found if isinstance(found, Mapping) else {}
        if other := [key for key in mine if found.get(key) != mine[key]]:
            key = other[0]
            raise UnweaveError(
                f"{path} was made with {key} = {found.get(key)!r}, now it is {mine[key]!r}: "
                "choose another --out, or delete the folder"
            )
        schema = REFERENCE_RESULT if method is None else RESULT
        check_file(path, result, schema, "delete it to run it again")
        if {key: result.get(key) for key in ("task", "method", "seed")} != _key(task, name, seed):
            raise UnweaveError(f"{path} holds another result: delete it to run it again")
        return result

    def write(
        self, task: str, name: str, method: Method | None, seed: int, result: Mapping[str, Any]
    ) -> dict[str, Any]:
        settings = self.settings(task, method)
        whole = plain({**_key(task, name, seed), "settings": settings, **result})
        write_json(self.path(task, name, seed), whole)
        return whole


def _key(task: str, method: str, seed: int) -> dict[str, Any]:
    return {"task": task, "method": method, "seed": seed}


def compare(
    comparison: Comparison,
    folder: Path,
    load: Load,
    say: Say = lambda line: None,
    executor: Submits | None = None,
) -> dict[str, Any]:
    """Runs what is not there yet, and writes and returns `compare.json`.

    Args:
        folder: Where results are, and where new ones go.
        load: Loads the model, also where all results are finished, to check its weights. With an
            executor it is called in the workers: a function of a module, or a `Loader`.
        say: Called with a line for every result.
        executor: Runs the methods: any with `submit`, such as those of concurrent.futures, submitit
            and Ray (`unweave.experiments.executors`); None runs them here, one after the other.

    Raises:
        UnweaveError: When a finished result is broken, or has other settings, weights or prompts.
    """
    comparison = comparison.checked()
    with locked(folder), preferred(comparison.base.precision):
        results = Results(folder, comparison)
        # Finished results are checked first: other settings are found before hours of work, and
        # before the model is loaded.
        on_first(lambda: _check_results(results))
        if executor is not None:
            return _spread(results, load, executor, say)
        model = load(comparison.base.model)
        results = replace(results, fingerprints=_fingerprints(comparison, model))
        on_first(lambda: _check_results(results))
        return _table(results, lambda task, seed: _task_results(results, task, seed, model, say))


def _spread(results: Results, load: Load, executor: Submits, say: Say) -> dict[str, Any]:
    """Missing results, computed by the executor's workers; then the table from all of them."""
    comparison = results.comparison
    # This process may be on a machine that cannot load the model: a worker tells its hash.
    calls = {"the model's hash": (loaded_fingerprints, (comparison, load))}
    for _, found in outcomes(executor, calls, say):
        if isinstance(found, UnweaveError):
            raise found
        results = replace(results, fingerprints=found)
    _check_results(results)
    named, done, calls, keys = _named(comparison), {}, {}, {}
    for task, seed, name in product(comparison.tasks, comparison.seeds, named):
        key = f"{task}, {name}, seed {seed}"
        keys[key] = (task, name, seed)
        done[key] = results.read(task, name, named[name], seed)
        if done[key] is None:
            calls[key] = (loaded_result, (results, load, task, name, seed))
        say(f"{key}: already there" if done[key] else key)
    for key, found in outcomes(executor, calls, say):
        failed = isinstance(found, UnweaveError)
        done[key] = {**_key(*keys[key]), "error": str(found)} if failed else found
        say(f"{key}: {done[key].get('error', 'finished')}")
    by_key = {keys[key]: result for key, result in done.items()}
    return _table(results, lambda task, seed: {name: by_key[task, name, seed] for name in named})


def loaded_fingerprints(comparison: Comparison, load: Load) -> dict[str, dict[str, str]]:
    """In a worker: hashes of the weights and of each task."""
    return _fingerprints(comparison, _loaded(load, comparison.base.model))


def loaded_result(results: Results, load: Load, task: str, name: str, seed: int) -> dict[str, Any]:
    """In a worker: one result, which is written and returned."""
    base = replace(results.comparison.base, task=task, seed=seed)
    experiment = _experiment(base, _loaded(load, base.model))
    return _computed(results, experiment, name, _named(results.comparison)[name])


@lru_cache(maxsize=1)
def _loaded(load: Load, name: str) -> Model:
    """A worker computes many results of one model."""
    return load(name)


@dataclass(frozen=True)
class Loader:
    """Loads a model by its name, here or in a worker."""

    device: str = "cpu"
    bos: bool | None = None
    # A worker is another process: what the command was asked for travels with it.
    precision: str | None = field(default_factory=asked_precision)
    memory: str | None = field(default_factory=asked_memory)

    def __call__(self, name: str) -> Model:
        ask_precision(self.precision)
        ask_memory(self.memory)
        return load_model(name, device=self.device, bos=self.bos)


def _check_results(results: Results) -> None:
    for task in results.comparison.tasks:
        for seed in results.comparison.seeds:
            for name, method in _named(results.comparison).items():
                results.read(task, name, method, seed)


def _fingerprints(comparison: Comparison, model: Model) -> dict[str, dict[str, str]]:
    return {
        task: Experiment.set_up(replace(comparison.base, task=task), model).fingerprint
        for task in comparison.tasks
    }


def _table(
    results: Results, results_of: Callable[[str, int], dict[str, dict[str, Any]]]
) -> dict[str, Any]:
    comparison = results.comparison
    rows, references = [], []
    for task in comparison.tasks:
        for seed in comparison.seeds:
            found = results_of(task, seed)
            gc.collect()  # an experiment and its problems refer to each other: gigabytes
            reference = found.pop(REFERENCE)
            references.append(reference)
            rows += [row(result, reference) for result in found.values()]
    record = plain(
        {
            "schema_version": SCHEMA_VERSION,
            "model": comparison.base.model,
            "settings": results.settings(),
            "seeds": comparison.seeds,
            "rows": rows,
            "summary": summary(rows),
            "figures": figures(rows, references),
        }
    )
    write_json(results.folder / "compare.json", record)
    return record


def _named(comparison: Comparison) -> dict[str, Method | None]:
    return {REFERENCE: None, **{method.name: method for method in comparison.methods}}


def _task_results(
    results: Results, task: str, seed: int, model: Model, say: Say
) -> dict[str, dict[str, Any]]:
    """The reference and each method's result, from files where they are there."""
    # Prompts and ablations are made when the first result needs them.
    experiment = _experiment(replace(results.comparison.base, task=task, seed=seed), model)

    def result(name: str, method: Method | None) -> dict[str, Any]:
        done = on_first(lambda: results.read(task, name, method, seed))
        if done is not None:
            say(f"{task}, {name}, seed {seed}: already there")
            return done
        say(f"{task}, {name}, seed {seed}")
        computed = _computed(results, experiment, name, method)
        if "error" in computed:
            say(f"{task}, {name}, seed {seed}: {computed['error']}")
        return computed

    return {name: result(name, method) for name, method in _named(results.comparison).items()}


def _experiment(how: Specification, model: Model) -> Experiment | EdgeExperiment:
    experiment = Experiment.set_up(how, model)
    return EdgeExperiment(experiment) if how.level == "edge" else experiment


def _computed(
    results: Results, experiment: Experiment | EdgeExperiment, name: str, method: Method | None
) -> dict[str, Any]:
    """Computes a result and writes it; one that fails says why, and is not written."""
    nodes = experiment.experiment if isinstance(experiment, EdgeExperiment) else experiment
    task, seed = nodes.specification.task, nodes.specification.seed
    try:
        if method is None:
            found = reference_result(experiment, results.comparison.draws)
        else:
            found = method_result(experiment, method)
        return results.write(task, name, method, seed, found)
    except UnweaveError as error:
        return {**_key(task, name, seed), "error": str(error)}


def read_comparison(path: Path) -> dict[str, Any]:
    """Reads what `unweave compare` wrote.

    Raises:
        UnweaveError: When it is not there or is broken.
    """
    found = read_json(path, "compare.json of unweave compare")
    check_file(path, found, COMPARISON, "compare again")
    return found
