"""What `unweave discover` left in a folder, as `unweave evaluate` needs it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from unweave.circuits import Scores
from unweave.errors import UnweaveError
from unweave.experiments.files import read_json
from unweave.sites import Site, parse

_CIRCUIT = "circuit.json, as unweave discover writes it"
_NEEDED = ("task", "model", "method", "nodes")


@dataclass(frozen=True, eq=False)
class Run:
    """A finished discovery.

    Args:
        options: How it was run: seed, ablation, granularity, ….
        scores: Of every node; None when the folder holds none.
    """

    folder: Path
    task: str
    model: str
    method: str
    circuit: tuple[Site, ...]
    options: Mapping[str, Any]
    scores: Scores | None

    @property
    def seed(self) -> int:
        return int(self.options.get("seed", 0))

    @property
    def ablation(self) -> str:
        return str(self.options.get("ablation", "mean"))

    @property
    def granularity(self) -> str:
        return str(self.options.get("granularity", "heads"))


def read_run(folder: Path) -> Run:
    """Reads a run folder.

    Raises:
        UnweaveError: When it is no run folder, or a file of it is broken, naming the file.
    """
    if not folder.is_dir():
        raise UnweaveError(f"no run folder {folder}: make one with unweave discover TASK")
    circuit = read_json(folder / "circuit.json", _CIRCUIT)
    if missing := [name for name in _NEEDED if name not in circuit]:
        raise UnweaveError(
            f"{folder / 'circuit.json'} has no {', '.join(missing)}: expected {_CIRCUIT}"
        )
    about = folder / "run.json"
    record = read_json(about, "run.json of unweave discover") if about.exists() else {}
    options = record.get("options", record)
    nodes = tuple(_node(folder, node) for node in circuit["nodes"])
    return Run(
        folder,
        str(circuit["task"]),
        str(circuit["model"]),
        str(circuit["method"]),
        nodes,
        options if isinstance(options, Mapping) else {},
        _scores(folder / "scores.safetensors"),
    )


def _node(folder: Path, node: Any) -> Site:
    name = node.get("site") if isinstance(node, Mapping) else node
    if not isinstance(name, str):
        raise UnweaveError(
            f"{folder / 'circuit.json'}: a node is {node!r}; expected an object with a site"
        )
    return parse(name)


def _scores(path: Path) -> Scores | None:
    if not path.exists():
        return None
    try:
        return Scores.load(path)
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise UnweaveError(
            f"{path} cannot be read ({error}): run unweave discover again, or delete the file to "
            "do without scores"
        ) from error
