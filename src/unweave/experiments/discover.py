"""`discover`: from a model and a task to a circuit."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from unweave.behaviours.file import find_task
from unweave.behaviours.task import Task
from unweave.circuits import Circuit, Scores
from unweave.errors import UnweaveError
from unweave.evaluation.curves import Curve, faithfulness_curve
from unweave.experiments.folder import RunFolder
from unweave.experiments.patterns import head_patterns
from unweave.experiments.specification import Plan, Stage, set_up
from unweave.experiments.words import word_scores
from unweave.model.model import Model
from unweave.scores.problem import Problem, methods
from unweave.search import algorithm1 as cdt
from unweave.search.eliminate import standard
from unweave.sites import Site, parse

_CURVE_PROMPTS = 32
# Sizes at which a scored ranking is tried as a circuit.
_SIZES = (1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 60, 80, 100)


def discover(
    model: Model,
    task: Task | str,
    plan: Plan | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Circuit:
    """Finds the circuit of a behaviour, and measures it on other prompts.

    Args:
        task: A task, its name, or a .jsonl or .csv file.
        plan: Method, granularity, ablation, seed and options; the defaults are meant to be good.
        out: A folder for everything that was found; None keeps nothing.
        resume: Go on with the run that `out` holds.
        say: Called with a line at every phase.

    Raises:
        UnweaveError: When the model cannot do the task, or the folder cannot be used.
    """
    plan = plan or Plan(task if isinstance(task, str) else task.name, model.name)
    task = find_task(task, plan.first_token) if isinstance(task, str) else task
    method = methods[plan.method]
    options = method.checked(plan.options)
    folder = None if out is None else RunFolder.open(Path(out), plan, resume)
    if folder is not None and (finished := folder.circuit()) is not None:
        return finished
    clock = _Clock()
    stage = set_up(plan, model, task)
    if folder is not None:
        folder.begin()
    correct = f"{stage.accuracy.correct:.0%} of prompts correct"
    say(f"{model.name} on {task.name}: metric {stage.accuracy.metric:+.2f}, {correct}")
    clock.lap("set-up")
    scores = None if folder is None else folder.scores()
    if scores is None:
        say(f"Scoring {len(stage.find.nodes)} nodes with {plan.method}")
        scores = (
            cdt.sweep(stage.find, options)
            if plan.method == "cdt"
            else method.run(stage.find, **plan.options)
        )
        if folder is not None:
            folder.save_scores(scores)
    clock.lap("scores")
    say("Choosing the circuit")
    scores, nodes, rounds = _choose(stage.find, scores, plan, options, folder)
    clock.lap("circuit")
    say(f"Measuring {len(nodes)} nodes on {len(stage.judge.batch)} other prompts")
    curve = _curve(stage.judge, scores, len(nodes))
    circuit = _circuit(plan, stage, scores, nodes)
    clock.lap("evaluation")
    if folder is not None:
        folder.save_scores(scores)
        folder.save_patterns(head_patterns(model, stage.judge.batch.clean, nodes))
        say("Scoring the words of one prompt")
        words = word_scores(model, stage.judge.batch)
        clock.lap("words")
        record = _record(plan, task, stage, options, rounds, curve, clock)
        folder.finish(circuit, {**record, "words": words})
    return circuit


def _choose(
    problem: Problem,
    scores: Scores,
    plan: Plan,
    options: Mapping[str, Any],
    folder: RunFolder | None,
) -> tuple[Scores, tuple[Site, ...], list[dict[str, Any]]]:
    """The circuit's nodes, the scores with their final order, and every iteration."""
    if plan.method != "cdt":
        nodes = _prefix(problem, scores)
        return scores, nodes, []
    found = None if folder is None else folder.search()
    found = cdt.search(
        problem, scores, options, found, None if folder is None else folder.save_search
    )
    if not found.rounds:
        raise UnweaveError(
            f"select {options['select']!r} chose no node: every score is 0; use another rule set"
        )
    order = cdt.ranking(scores, found)
    nodes = tuple(map(parse, found.rounds[-1].circuit))
    return replace(scores, order=tuple(order)), nodes, list(found.to_dict()["rounds"])


def _prefix(problem: Problem, scores: Scores, price: float = 0.005) -> tuple[Site, ...]:
    """The best first nodes of a ranking, each node at the same price as for cdt."""
    ranking = [parse(name) for name in scores.ranking()]
    sizes = sorted({min(size, len(ranking)) for size in _SIZES})
    losses = standard(problem).loss(problem.metric([tuple(ranking[:size]) for size in sizes]))
    best = min(zip(sizes, losses.tolist(), strict=True), key=lambda x: x[1] + price * x[0])
    return tuple(ranking[: best[0]])


def _curve(problem: Problem, scores: Scores, size: int) -> Curve:
    """A coarse curve on some of the held-out prompts; `unweave evaluate` draws the whole of it."""
    count = len(problem.nodes)
    some = slice(0, min(len(problem.batch), _CURVE_PROMPTS))
    part = problem.select(some)
    sizes = {0, 1, size // 4, size // 2, 3 * size // 4, size, 3 * size // 2, 2 * size, 4 * size}
    sizes = sorted({min(one, count) for one in sizes} | {count // 2, count})
    return faithfulness_curve(part, [parse(name) for name in scores.ranking()], sizes)


def _circuit(plan: Plan, stage: Stage, scores: Scores, nodes: tuple[Site, ...]) -> Circuit:
    names = tuple(map(str, nodes))
    return Circuit(
        names,
        tuple(scores[name] for name in names),
        float(stage.judge.faithfulness([nodes])[0]),
        float(stage.find.faithfulness([nodes])[0]),
        len(stage.find.nodes),
        plan.task,
        plan.model,
        plan.method,
    )


def _record(
    plan: Plan,
    task: Task,
    stage: Stage,
    options: Mapping[str, Any],
    rounds: list[dict[str, Any]],
    curve: Curve,
    clock: "_Clock",
) -> dict[str, Any]:
    """What `run.json` tells, beside what the folder itself adds."""
    metric = stage.judge.metric([(), stage.judge.nodes]).mean(1).tolist()
    iterations = [
        {
            "targets": one["targets"],
            "relevance": one["relevance"],
            "selected": one["selected"],
            "dropped": one["dropped"],
            "size": len(one["circuit"]),
            "loss": one["loss"],
            "faithfulness": one["faithfulness"],
        }
        for one in rounds
    ]
    return {
        "task": plan.task,
        "model": plan.model,
        "method": plan.method,
        "seed": plan.seed,
        "options": {**plan.to_dict(), **options},
        "accuracy": stage.accuracy._asdict(),
        "metric": {
            "name": task.metric.name,
            "formula": task.metric.formula,
            "empty": metric[0],
            "full": metric[1],
        },
        "prompts": {
            "discover": _prompts(stage.find),
            "evaluate": _prompts(stage.judge),
        },
        "iterations": iterations,
        "elimination": [step for one in rounds for step in one["steps"]],
        "curve": {"sizes": curve.sizes, "faithfulness": curve.faithfulness},
        "summary": {
            "cmd": curve.cmd,
            "cpr": curve.cpr,
            "k80": curve.first(0.8),
            "k95": curve.first(0.95),
        },
        "nodes_total": len(stage.find.nodes),
        "shape": _shape(stage.find.model),
        "seconds": clock.laps,
    }


def _shape(model: Model) -> dict[str, Any]:
    """What other tools ask about a model (cfg of EAP-IG)."""
    blocks = model.network.body.blocks
    first = blocks[0]
    return {
        "layers": len(blocks),
        "heads": first.attention.heads,
        "d_model": first.attention.out.matrix.shape[0],
        "parallel": first.parallel,
    }


def _prompts(problem: Problem) -> list[dict[str, Any]]:
    batch, model = problem.batch, problem.model
    readout, tokens = batch.readout, batch.clean.tokens
    assert tokens is not None
    labels = model.network.head.labels

    def words(ids: list[int]) -> list[str]:
        return [labels[i] if labels else model.decode(i) for i in ids if i >= 0]

    rows = []
    for i in range(len(batch)):
        ids = tokens[i][batch.clean.mask[i]].tolist()
        rows.append(
            {
                "clean": batch.texts[i],
                "corrupted": batch.corrupted_texts[i],
                "answers": words(readout.answers[i].tolist()),
                "distractors": words(readout.distractors[i].tolist()),
                "tokens": [model.decode(token) for token in ids],
                "positions": {name: int(where[i]) for name, where in batch.positions.items()},
            }
        )
    return rows


class _Clock:
    """Seconds by phase."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name] = round(now - self._last, 2)
        self._last = now
