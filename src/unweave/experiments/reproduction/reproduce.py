"""`reproduce`: every part of every subject, each a file as soon as it is there.

1. A subject whose model cannot be loaded is named, with the reason, and the others go on. 2. A part
whose file exists is read, not run; a file of other settings stops the command before anything is
mixed. 3. All of it goes into `reproduce.json`.
"""

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unweave.behaviours.published import ModelShape
from unweave.errors import UnweaveError
from unweave.experiments.files import plain, read_json, write_json
from unweave.experiments.locking import locked
from unweave.experiments.reproduction.parts import REPRODUCED
from unweave.experiments.reproduction.subjects import PRINTED, TaskOnModel
from unweave.experiments.specification import Experiment, Specification, check_seed
from unweave.model.model import Model

SCHEMA_VERSION = 1
Say = Callable[[str], None]


@dataclass(frozen=True)
class Reproduction:
    """What to reproduce.

    Args:
        subjects: Tasks on models.
        seed: Decides which prompts are drawn.
        draws: Random circuits a size, and random orders.
    """

    subjects: tuple[TaskOnModel, ...]
    seed: int = 0
    draws: int = 10

    def __post_init__(self) -> None:
        check_seed(self.seed)


def reproduce(
    reproduction: Reproduction,
    folder: Path,
    load: Callable[[str], Model],
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Runs what is not there yet, and writes and returns `reproduce.json`.

    Args:
        folder: Where finished parts are, and where new ones go.
        load: Loads a model by its name.
        say: Called with a line for every part.

    Raises:
        UnweaveError: When a finished part is broken or has other settings, or when no subject could
            be run at all.
    """
    with locked(folder):
        models: dict[str, Model | UnweaveError] = {}
        found = [
            _subject(reproduction, one, folder, models, load, say) for one in reproduction.subjects
        ]
        record = plain(
            {
                "schema_version": SCHEMA_VERSION,
                "seed": reproduction.seed,
                "draws": reproduction.draws,
                "subjects": found,
            }
        )
        write_json(folder / "reproduce.json", record)
    failed = [one for one in found if "error" in one]
    if len(failed) == len(found):
        raise UnweaveError(f"nothing could be reproduced: {failed[0]['error']}")
    return record


def _subject(
    reproduction: Reproduction,
    subject: TaskOnModel,
    folder: Path,
    models: dict[str, Model | UnweaveError],
    load: Callable[[str], Model],
    say: Say,
) -> dict[str, Any]:
    """All parts of one subject; an error that the user can fix ends this subject alone."""
    about = {**asdict(subject), "printed": PRINTED.get(subject.task, {})}
    if subject.model not in models:
        models[subject.model] = _loaded(subject.model, load)
    model = models[subject.model]
    if isinstance(model, UnweaveError):
        say(f"{subject.task} on {subject.model}: {model}")
        return {**about, "error": str(model)}
    experiment = Experiment.set_up(
        Specification(
            task=subject.task,
            model=subject.model,
            prompts=subject.prompts,
            held_out=subject.held_out,
            mlps=subject.mlps,
            seed=reproduction.seed,
        ),
        model,
    )
    known = experiment.task.known_circuit(model)
    about |= {"reference": known.reference if known else None, "shape": _shape(model)}
    parts = _PartFiles(folder, reproduction, subject, experiment.fingerprint)
    done: dict[str, Any] = {}
    for name, part in REPRODUCED.items():
        finished = parts.read(name)
        if finished is None:
            say(f"{subject.task} on {subject.model}: {name}")
            try:
                finished = part(experiment, done.get("sweep", {}), reproduction.draws)
            except UnweaveError as error:
                say(f"{subject.task} on {subject.model}: {error}")
                return {**about, "error": str(error), "parts": done}
            parts.write(name, finished)
        done[name] = plain(finished)
    return {**about, "parts": done}


def _shape(model: Model) -> str:
    """What a model's name stands for: "gpt2, 12 layers of 12 heads, width 768"."""
    shape = ModelShape.of(model)
    if shape is None:
        return model.architecture
    return (
        f"{shape.architecture}, {shape.layers} layers of {shape.heads} heads, width {shape.width}"
    )


def _loaded(name: str, load: Callable[[str], Model]) -> Model | UnweaveError:
    try:
        return load(name)
    except UnweaveError as error:
        return error


@dataclass(frozen=True)
class _PartFiles:
    """The finished parts of one subject.

    Args:
        fingerprint: Hashes of what the names of task and model stand for.
    """

    folder: Path
    reproduction: Reproduction
    subject: TaskOnModel
    fingerprint: dict[str, str]

    def path(self, part: str) -> Path:
        slug = re.sub(r"[^\w.-]+", "_", f"{self.subject.task}-{Path(self.subject.model).name}")
        return self.folder / "parts" / f"{slug[-150:]}--{part}.json"

    @property
    def settings(self) -> dict[str, Any]:
        """What has to be the same for two parts to stand on one page."""
        whole = {"seed": self.reproduction.seed, "draws": self.reproduction.draws}
        hashes = {f"hash of {name}": value for name, value in self.fingerprint.items()}
        return {"schema_version": SCHEMA_VERSION, **asdict(self.subject), **whole, **hashes}

    def read(self, part: str) -> dict[str, Any] | None:
        """A finished part, or None.

        Raises:
            UnweaveError: When the file is broken, or was made with other settings.
        """
        path = self.path(part)
        if not path.exists():
            return None
        record = read_json(path, "a part of unweave reproduce; delete it to run it again")
        found, mine = record.get("settings"), self.settings
        if not isinstance(found, dict) or not isinstance(record.get("found"), dict):
            raise UnweaveError(f"{path} is not a part of unweave reproduce: delete it")
        for key, value in mine.items():
            if found.get(key) != value:
                raise UnweaveError(
                    f"{path} was made with {key} = {found.get(key)!r}, now it is {value!r}: "
                    "choose another --out, or delete the folder"
                )
        return record["found"]

    def write(self, part: str, found: dict[str, Any]) -> None:
        write_json(self.path(part), {"part": part, "settings": self.settings, "found": found})
