"""Run folders whose files somebody edited, cut short or replaced."""

import json
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from bad_input.case import Case, Make, damaged, edit, file, steps

from unweave.experiments.discover import discover
from unweave.experiments.specification import Specification
from unweave.model.loading import load

TASK = "wired-induction"
RESUME = f"discover {TASK} --method eap -n 4 --held-out 4 --resume -q --out {{bad}}"


@cache
def _run() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="unweave-bad-input-")) / "run"
    how = Specification(TASK, TASK, method="eap", prompts=4, held_out=4)
    discover(load(TASK), TASK, how, folder, explain=False)
    return folder


def finished(folder: Path) -> None:
    """A finished run."""
    shutil.copytree(_run(), folder, dirs_exist_ok=True)


def changed(name: str, **fields: Any) -> Make:
    """A run with fields of a JSON file changed; `...` takes a field out."""
    return steps(finished, edit(name, **fields))


def inside(name: str, change: Callable[[dict[str, Any]], object]) -> Make:
    """A run with something deep in a JSON file changed."""

    def make(folder: Path) -> None:
        record = json.loads((folder / name).read_text())
        change(record)
        (folder / name).write_text(json.dumps(record))

    return steps(finished, make)


def replaced(name: str, content: str | bytes) -> Make:
    return steps(finished, file(name, content))


def without(name: str) -> Make:
    return steps(finished, lambda folder: (folder / name).unlink())


def state(fields: dict[str, Any]) -> Make:
    """A run that was interrupted, with fields of state.json changed."""

    def make(folder: Path) -> None:
        record = json.loads((folder / "run.json").read_text())
        for name in ("run.json", "circuit.json", "patterns.safetensors"):
            (folder / name).unlink()
        begun = {"schema_version": 2, "identity": record["identity"], "saved": {}, "checksum": "x"}
        (folder / "state.json").write_text(json.dumps(begun | fields))

    return steps(finished, make)


RUN = {
    "empty": (replaced("run.json", ""), "run.json is not JSON"),
    "half": (steps(finished, damaged("run.json", lambda b: b[: len(b) // 2])), "is not JSON"),
    "binary": (replaced("run.json", bytes(range(256))), "run.json is not JSON"),
    "a list": (replaced("run.json", "[]"), "run.json holds a list"),
    "null": (replaced("run.json", "null"), "run.json holds a NoneType"),
    "deep": (replaced("run.json", "[" * 100_000), "run.json is not JSON"),
    "digits": (replaced("run.json", '{"a": ' + "9" * 5000 + "}"), "run.json is not JSON"),
    "a folder": (
        steps(without("run.json"), lambda folder: (folder / "run.json").mkdir()),
        "run.json cannot be read: Is a directory",
    ),
    "gone": (without("run.json"), "run.json is not there"),
    "old": (changed("run.json", schema_version=1), "has schema_version 1"),
    "no version": (changed("run.json", schema_version=...), "has schema_version None"),
    "task number": (changed("run.json", task=3), "run.json is broken (task is 3, expected a text)"),
    "rounds text": (changed("run.json", rounds="x"), "rounds is 'x', expected a list"),
    "round number": (changed("run.json", rounds=[3]), "rounds[0] is 3, expected an object"),
    "targets": (changed("run.json", rounds=[{"targets": 3}]), "rounds[0].targets is 3"),
    "relevance": (changed("run.json", rounds=[{"relevance": {"a0.h0": "x"}}]), "expected a number"),
    "prompts list": (changed("run.json", prompts=[]), "prompts is [], expected an object"),
    "prompt number": (changed("run.json", prompts={"evaluate": [3]}), "prompts.evaluate[0] is 3"),
    "tokens": (changed("run.json", prompts={"evaluate": [{"tokens": 3}]}), "tokens is 3"),
    "positions": (
        changed("run.json", prompts={"evaluate": [{"positions": {"end": "x"}}]}),
        "positions.end is 'x', expected a whole number",
    ),
    "curve": (changed("run.json", curve={"sizes": [0]}), "an object with faithfulness"),
    "curve lengths": (
        changed("run.json", curve={"sizes": [0, 1], "faithfulness": [0.0]}),
        "one for a size",
    ),
    "seconds": (changed("run.json", seconds={"x": "long"}), "seconds.x is 'long'"),
    "seconds huge": (changed("run.json", seconds={"x": 10**400}), "expected a number"),
    "metric": (changed("run.json", metric=3), "metric is 3"),
    "words": (changed("run.json", words={"words": [{}]}), "words[0] is {}"),
    "verdict": (changed("run.json", verdict="good"), "verdict is 'good'"),
    "markup": (changed("run.json", task=["[/red]"]), "task is ['[/red]']"),
}
CIRCUIT = {
    "gone": (without("circuit.json"), "circuit.json is not there"),
    "empty": (replaced("circuit.json", ""), "circuit.json is not JSON"),
    "a list": (replaced("circuit.json", "[]"), "circuit.json holds a list"),
    "old": (changed("circuit.json", schema_version=1), "schema_version 1"),
    "no nodes": (changed("circuit.json", nodes=...), "an object with nodes"),
    "nodes text": (changed("circuit.json", nodes="a0.h0"), "nodes is 'a0.h0', expected a list"),
    "node text": (changed("circuit.json", nodes=["a0.h0"]), "nodes[0] is 'a0.h0'"),
    "no site": (changed("circuit.json", nodes=[{"score": 1}]), "an object with site"),
    "site number": (changed("circuit.json", nodes=[{"site": 3}]), "site is 3, expected a text"),
    "no such site": (
        changed("circuit.json", nodes=[{"site": "x"}], size=1),
        "circuit.json is broken",
    ),
    "markup": (changed("circuit.json", nodes=[{"site": "[/red]"}], size=1), "[/red]"),
    "score": (changed("circuit.json", nodes=[{"site": "a0.h0", "score": "x"}]), "score is 'x'"),
    "interval": (changed("circuit.json", interval=[1]), "interval is [1], expected a list of 2"),
    "total": (changed("circuit.json", total="x"), "total is 'x', expected a whole number"),
    "faithfulness": (changed("circuit.json", faithfulness="x"), "faithfulness is 'x'"),
    "size": (changed("circuit.json", size=300), "circuit.json is broken (size is 300, expected "),
    "task": (changed("circuit.json", task=3), "task is 3"),
}
TENSORS = {
    "scores empty": (replaced("scores.safetensors", b""), "scores.safetensors cannot be read"),
    "scores text": (replaced("scores.safetensors", "no"), "scores.safetensors cannot be read"),
    "scores half": (
        steps(finished, damaged("scores.safetensors", lambda b: b[: len(b) // 2])),
        "scores.safetensors cannot be read",
    ),
    "scores header": (
        steps(finished, damaged("scores.safetensors", lambda b: b"\xff" * 8 + b[8:])),
        "scores.safetensors cannot be read",
    ),
    "scores of other tensors": (
        steps(
            finished, lambda f: shutil.copy(f / "patterns.safetensors", f / "scores.safetensors")
        ),
        "scores.safetensors cannot be read",
    ),
    "scores of a site that is none": (
        steps(finished, damaged("scores.safetensors", lambda b: b.replace(b"a0.h0", b"x0.h0"))),
        "scores.safetensors cannot be read",
    ),
    "patterns text": (replaced("patterns.safetensors", "no"), "patterns.safetensors cannot be"),
}
EVALUATION = {
    "empty": (replaced("evaluation.json", ""), "evaluation.json is not JSON"),
    "a list": (replaced("evaluation.json", "[]"), "evaluation.json holds a list"),
    "faithfulness": (replaced("evaluation.json", '{"faithfulness": 3}'), "faithfulness is 3"),
    "curves": (replaced("evaluation.json", '{"curves": {"mean": {}}}'), "an object with sizes"),
    "random": (replaced("evaluation.json", '{"random": [{"size": 1}]}'), "an object with fraction"),
    "random_circuits": (
        replaced("evaluation.json", '{"random_circuits": {"shares": [3]}}'),
        "an object with up_to",
    ),
    "roc": (replaced("evaluation.json", '{"roc": {"published": 3}}'), "roc.published is 3"),
    "minimality": (replaced("evaluation.json", '{"minimality": []}'), "minimality is []"),
    "stability": (replaced("evaluation.json", '{"stability": {"size": "x"}}'), "size is 'x'"),
    "parts": (replaced("evaluation.json", '{"parts": 3}'), "parts is 3"),
}


def _specification(**fields: Any) -> Make:
    def change(record: dict[str, Any]) -> None:
        found = record["identity"]["specification"] | fields
        kept = {name: value for name, value in found.items() if value is not ...}
        record["identity"]["specification"] = kept

    return inside("run.json", change)


IDENTITY = {
    "gone": (changed("run.json", identity=...), "does not say how the run was made"),
    "text": (changed("run.json", identity="x"), "identity is 'x'"),
    "no specification": (changed("run.json", identity={}), "does not say how the run was made"),
    "no model": (_specification(model=...), "needs the field 'model'"),
    "strange field": (_specification(baseline="mean"), "no field 'baseline'"),
    "seed text": (_specification(seed="x"), "seed is 'x': expected int"),
    "no such precision": (_specification(precision="half"), "precision half: expected float32"),
    "seed huge": (_specification(seed=10**23), "a seed of 77 bits"),
    "no such task": (_specification(task="io"), "unknown task 'io'"),
    "no such model": (_specification(model="nowhere/at/all"), "nowhere/at/all"),
    "no such method": (_specification(method="x", score=None, search=None), "unknown method 'x'"),
    "no such score": (_specification(score="x"), "unknown score 'x'"),
    "no such ablation": (_specification(ablation="men"), "men"),
    "no such granularity": (_specification(granularity="x"), "unknown node kind 'x'"),
    "strange option": (_specification(options={"x": 1}), "an option 'x'"),
    "option text": (_specification(options={"max_size": "x"}), "max_size is 'x'"),
    "weights": (
        inside("run.json", lambda r: r["identity"]["fingerprint"].update(model="0")),
        "the model of",
    ),
    "a node of another model": (
        changed("circuit.json", nodes=[{"site": "a9.h9", "score": 1.0}], size=1),
        "a9.h9",
    ),
}
STATE = {
    "empty": (steps(state({}), file("state.json", "")), "state.json is not JSON"),
    "a list": (steps(state({}), file("state.json", "[]")), "state.json holds a list"),
    "no identity": (state({"identity": None}), "holds another run"),
    "identity text": (state({"identity": "x"}), "holds another run"),
    "no checksum": (state({"checksum": None}), "state.json was changed"),
    "edited": (state({"saved": {"search": {"rounds": 3}}}), "state.json was changed"),
    "saved text": (state({"saved": "x"}), "state.json was changed"),
    "gone": (steps(state({}), lambda folder: (folder / "state.json").unlink()), "holds no run"),
}
PATHS = {
    "empty": (replaced("paths.json", ""), "paths.json is not JSON"),
    "no paths": (replaced("paths.json", '{"prompts": 4}'), "an object with paths"),
    "share text": (
        replaced("paths.json", '{"prompts": 4, "paths": [{"path": ["logits"], "share": "x"}]}'),
        "paths[0].share is 'x'",
    ),
}

_SHOWN = ("report {bad}", "evaluate {bad}", "export {bad} -f csv -o -")
CASES = [
    Case(f"{kind} {name}", _SHOWN[index % len(_SHOWN)], says, make)
    for kind, table in (
        ("run", RUN),
        ("circuit", CIRCUIT),
        ("evaluation", EVALUATION),
        ("paths", PATHS),
    )
    for index, (name, (make, says)) in enumerate(table.items())
]
CASES += [Case(name, "report {bad}", says, make) for name, (make, says) in TENSORS.items()]
CASES += [
    Case(f"identity {name}, {command}", f"{command} {{bad}}", says, make)
    for name, (make, says) in IDENTITY.items()
    for command in ("evaluate", "explain")
]
CASES += [Case(f"state {name}", RESUME, says, make) for name, (make, says) in STATE.items()]
CASES += [
    Case(f"resumed, {kind} {name}", RESUME, says, make)
    for kind, table in (("run", RUN), ("circuit", CIRCUIT))
    for name, (make, says) in table.items()
    if name in ("empty", "a list", "binary", "deep", "rounds text", "no nodes", "site number")
]
CASES += [
    Case(
        "effects too far apart to draw",
        "plot {bad} -f circuit -o x.svg",
        "cannot be drawn",
        inside("circuit.json", lambda found: found["nodes"][0].update(effect=1e308)),
    ),
]
