"""The folder of `unweave mib run`, and the files of a submission to MIB's leaderboard.

A folder has `mib.json` (every result with its curves, and the model's shape) and `scores/` (the
scores of each result as safetensors). A submission has
`<level>/<task>_<model>/importances.json`, in the form that EAP-IG's `Graph.from_json` reads: `cfg`,
`nodes` and `edges`.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from unweave.behaviours.file import find_task
from unweave.behaviours.mib_hub import DATASETS
from unweave.circuits import EdgeScores, Scores
from unweave.errors import UnweaveError
from unweave.experiments.files import read_json, write_json, write_whole
from unweave.experiments.methods import Method
from unweave.experiments.mib import Found, MibLevel, mib_means, mib_problem, mib_result
from unweave.experiments.schema import anything, check_file, each, fields, named, text, whole
from unweave.experiments.specification import check_seed
from unweave.model.model import Model
from unweave.registry import nearest

Say = Callable[[str], None]
SCHEMA_VERSION = 2
_AGAIN = "run unweave mib run again"
_RESULT = fields(
    {
        **dict.fromkeys(("task", "model", "level", "method", "error", "scores"), text),
        "seed": whole,
    },
    ("task", "model", "level", "method", "seed"),
)
TABLE = fields(
    {"schema_version": whole, "model": text, "cfg": named(anything), "results": each(_RESULT)},
    ("schema_version", "model", "cfg", "results"),
)


@dataclass(frozen=True)
class MibTable:
    """What one `unweave mib run` measures.

    Args:
        tasks: Names (mib-bench/ioi is MIB's own dataset), or .jsonl and .csv files.
        prompts, held_out: To score on and to measure on; None takes the task's own numbers.
    """

    tasks: tuple[str, ...]
    model: str
    methods: tuple[Method, ...]
    level: MibLevel = "node"
    seeds: tuple[int, ...] = (0,)
    prompts: int | None = None
    held_out: int | None = None

    def __post_init__(self) -> None:
        for seed in self.seeds:
            check_seed(seed)


def run_table(table: MibTable, model: Model, folder: Path, say: Say) -> dict[str, Any]:
    """Measures every method and writes and returns `mib.json`; one that fails says why."""
    results: list[dict[str, Any]] = []
    record: dict[str, Any] = {}
    for name in table.tasks:
        task = find_task(name)
        for seed in table.seeds:
            about = {"task": task.name, "model": table.model, "seed": seed}
            discovery = mib_problem(task, model, "discover", table.prompts, seed)
            held_out = mib_problem(task, model, "evaluate", table.held_out, seed)
            for method in table.methods:
                say(f"{task.name}, {method.name}, seed {seed}")
                key = {**about, "level": table.level, "method": method.name}
                try:
                    found = mib_result(discovery, held_out, method, table.level, about)
                    file = f"{_file_name('--'.join((task.name, method.name, str(seed))))}"
                    path = Path("scores") / f"{table.level}--{file}.safetensors"
                    save_items(folder / path, found.found)
                    results.append({**found.record, "scores": str(path)})
                except UnweaveError as error:
                    say(f"{task.name}, {method.name}, seed {seed}: {error}")
                    results.append({**key, "error": str(error)})
                record = {
                    "schema_version": SCHEMA_VERSION,
                    "model": table.model,
                    "cfg": graph_config(model),
                    "results": results,
                    "summary": mib_means(results),
                }
                write_json(folder / "mib.json", record)
    return record


def graph_config(model: Model) -> dict[str, Any]:
    """The model's shape under the names that EAP-IG's graph has for it."""
    blocks = model.network.body.blocks
    return {
        "n_layers": len(blocks),
        "n_heads": blocks[0].attention.heads,
        "parallel_attn_mlp": blocks[0].parallel,
        "d_model": blocks[0].attention.q.shape[1],
    }


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.=+-]+", "-", text)


def save_items(path: Path, found: Found) -> None:
    """The scores of a level's items, names in the metadata."""
    names = _names(found)
    tensors = {"values": found.values.detach().cpu().contiguous()}
    metadata = {"names": json.dumps(names)}
    write_whole(path, lambda part: save_file(tensors, part, metadata))


def _names(found: Found) -> tuple[str, ...]:
    if isinstance(found, Scores):
        return tuple("input" if name == "embed" else name for name in found.sources)
    return found.edges if isinstance(found, EdgeScores) else found.nodes


def load_items(path: Path) -> tuple[tuple[str, ...], Float[Tensor, "item *neuron"]]:
    """Reads what `save_items` wrote.

    Raises:
        UnweaveError: When it is not there or is broken.
    """
    try:
        with safe_open(path, "pt") as file:
            names = json.loads((file.metadata() or {})["names"])
            return tuple(names), file.get_tensor("values")
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise UnweaveError(f"{path} cannot be read: {error}; {_AGAIN}") from error


def read_table(folder: Path) -> dict[str, Any]:
    """Reads `mib.json`.

    Raises:
        UnweaveError: When it is not there or is broken.
    """
    path = folder / "mib.json"
    found = read_json(path, "mib.json of unweave mib run")
    check_file(path, found, TABLE, _AGAIN)
    return found


def pack(
    folder: Path, method: str | None, target: Path, model_name: str | None = None
) -> list[Path]:
    """Writes a method's scores as MIB's submission has them; of several seeds, the first.

    Args:
        method: As in the table; None where there is only one.
        model_name: MIB's name of the model ("gpt2", "qwen2.5"); by default the model's own.

    Raises:
        UnweaveError: When there is no such method, it failed on every task and seed, or two tasks
            would be one in the submission.
    """
    table = read_table(folder)
    methods = list(dict.fromkeys(result["method"] for result in table["results"]))
    if method is None:
        if len(methods) != 1:
            raise UnweaveError(
                f"{folder} has the methods {', '.join(methods)}: name one with --method"
            )
        method = methods[0]
    elif method not in methods:
        raise UnweaveError(f"no method {method!r} in {folder}: {nearest(method, methods)}")
    chosen: dict[tuple[str, str], Mapping[str, Any]] = {}
    for result in table["results"]:
        if result["method"] == method and "scores" in result:
            chosen.setdefault((result["level"], result["task"]), result)
    if not chosen:
        raise UnweaveError(f"{method} failed on every task and seed in {folder}: {_AGAIN}")
    name = _plain(model_name or Path(table["model"]).name)
    written: dict[Path, str] = {}
    for (level, task), result in chosen.items():
        theirs = DATASETS[task].task if task in DATASETS else task
        path = target / level / f"{_plain(theirs)}_{name}" / "importances.json"
        if path in written:
            raise UnweaveError(
                f"{written[path]} and {task} both have the name {theirs} in a submission: run "
                "them with two --out"
            )
        names, values = load_items(folder / result["scores"])
        write_json(path, importances(table["cfg"], level, names, values))
        written[path] = task
    return list(written)


def _plain(text: str) -> str:
    """An underscore separates task and model: there is none within them."""
    return _file_name(text).replace("_", "-")


def importances(
    config: Mapping[str, Any], level: str, names: Sequence[str], values: Tensor
) -> dict[str, Any]:
    """The content of `importances.json`. Nothing is in the circuit: MIB keeps items by score."""
    outside = {"in_graph": False}
    nodes: dict[str, dict[str, Any]] = {}
    edges: dict[str, dict[str, Any]] = {}
    if level == "edge":
        shown = zip(names, values.tolist(), strict=True)
        edges = {name: {"score": value, **outside} for name, value in shown}
        nodes = {name.split("->")[0]: dict(outside) for name in names}
    elif level == "node":
        shown = zip(names, values.tolist(), strict=True)
        nodes = {name: {"score": value, **outside} for name, value in shown}
    else:
        for name, row in zip(names, values.tolist(), strict=True):
            nodes[name] = {**outside, "neurons": [False] * len(row), "neurons_scores": row}
    return {"cfg": dict(config), "nodes": {**nodes, "logits": {"in_graph": True}}, "edges": edges}
