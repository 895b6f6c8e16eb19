"""`evaluate` of a run folder: the circuit that `discover` found, on prompts that it did not use.

1. The run's model and task are checked to be what they were. 2. One phase after the other is
announced, run, and saved in evaluation.json as soon as it is there. 3. A phase that is saved
already, with the same settings, is not run again; so an evaluation that was stopped goes on.
"""

import hashlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic

from unweave.ablations.kind import ablations
from unweave.asked import asked_precision, preferred
from unweave.circuits import Scores
from unweave.cost import metered
from unweave.distributed import on_first
from unweave.errors import UnweaveError
from unweave.evaluation.api import (
    EVALUATION_PARTS,
    SCHEMA_VERSION,
    Evaluation,
    coarse_sizes,
    complete,
    known_faithfulness,
)
from unweave.evaluation.checks import completeness, minimality
from unweave.evaluation.curves import curve_sizes, faithfulness_curve
from unweave.evaluation.faithfulness import by_ablation, by_templates
from unweave.evaluation.random_circuits import (
    DRAWS,
    FRACTIONS,
    compare_with_random,
    random_circuits,
)
from unweave.evaluation.roc import Roc, roc_of_each
from unweave.evaluation.stability import stability
from unweave.experiments.discover_edges import check_edges
from unweave.experiments.edge_experiment import EdgeExperiment
from unweave.experiments.files import plain, write_json
from unweave.experiments.locking import locked
from unweave.experiments.phases import forward_tokens
from unweave.experiments.repeats import check_repeatable, repeated, repeats_record
from unweave.experiments.run_folder import Run, read_evaluation
from unweave.experiments.specification import Experiment, Specification
from unweave.model.model import Model
from unweave.registry import nearest
from unweave.scores.problem import N, Runs
from unweave.sites import Site, parse

Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Subject(Generic[N]):
    """A circuit of nodes or edges, the prompts it is evaluated on, and every ablation of them.

    Args:
        ordered: The ranking that it came from; what it leaves out comes last.
        scores: Of nodes; None where there are none, and of a circuit of edges.
        known: Measures known circuits.
        roc: How well the scores find known circuits.
    """

    problems: Mapping[str, Runs[N]]
    circuit: tuple[N, ...]
    ordered: tuple[N, ...]
    scores: Scores | None
    known: Callable[[], dict[str, float]]
    roc: Callable[[], dict[str, Roc]]
    draws: int
    seed: int
    about: Mapping[str, str]
    new_templates: tuple[str, ...] = ()

    @property
    def main(self) -> Runs[N]:
        """Under the ablation that the circuit was found with."""
        return next(iter(self.problems.values()))

    @cached_property
    def ranking(self) -> list[N]:
        return complete(self.main, self.ordered)

    def part(self, **found: Any) -> dict[str, Any]:
        """Some fields of an evaluation as JSON has them, and what every evaluation tells."""
        main = self.main
        evaluation = Evaluation(
            circuit=tuple(map(str, self.circuit)),
            nodes=len(main.nodes),
            prompts=len(main.batch),
            ablation=main.ablation.name,
            about=self.about,
            **{"faithfulness": {}, **found},
        )
        record = evaluation.to_json()
        always = ("schema_version", "circuit", "size", "nodes", "prompts", "ablation", "about")
        return {name: record[name] for name in (*always, *found)}


def _faithfulness(subject: Subject) -> dict[str, Any]:
    metric = subject.main.metric([subject.circuit])[0]
    return {
        "faithfulness": by_ablation(subject.problems, subject.circuit, metric),
        "templates": by_templates(subject.main, metric, subject.new_templates),
        "known": subject.known(),
    }


def _curve(subject: Subject) -> dict[str, Any]:
    main, ranking = subject.main, subject.ranking
    curves = {main.ablation.name: faithfulness_curve(main, ranking)}
    sizes = coarse_sizes(len(main.nodes), len(subject.circuit))
    for name, problem in subject.problems.items():
        try:
            _ = problem.reference.scale
        except UnweaveError:  # the table says that this ablation has no scale
            continue
        if problem is not main:
            curves[name] = faithfulness_curve(problem, ranking, sizes)
    return {"curves": curves}


def _roc(subject: Subject) -> dict[str, Any]:
    return {"roc": subject.roc()}


def _random_circuits(subject: Subject) -> dict[str, Any]:
    drawn = random_circuits(subject.main, FRACTIONS, subject.draws, subject.seed)
    own = float(subject.main.faithfulness([subject.circuit])[0])
    return {
        "random": drawn,
        "random_circuits": compare_with_random(own, len(subject.circuit), drawn),
    }


def _completeness(subject: Subject) -> dict[str, Any]:
    if not subject.circuit:
        return {"completeness": None}
    found = completeness(subject.main, subject.circuit, subject.draws, subject.seed)
    return {"completeness": found}


def _minimality(subject: Subject) -> dict[str, Any]:
    return {"minimality": minimality(subject.main, subject.circuit) if subject.circuit else None}


def _stability(subject: Subject) -> dict[str, Any]:
    scores, size = subject.scores, len(subject.circuit)
    if scores is None or scores.examples.shape[1] < 2:
        return {"stability": None}
    return {"stability": stability(scores, size, seed=subject.seed)}


@dataclass(frozen=True)
class Phase:
    """A part of an evaluation.

    Args:
        what: For people.
        run: Fields of `Evaluation`.
        circuits: How many circuits it runs, for an estimate of the time that is left.
    """

    what: str
    run: Callable[[Subject], dict[str, Any]]
    circuits: Callable[[Subject], int]


def _curve_circuits(subject: Subject) -> int:
    count = len(subject.main.nodes)
    others = (len(subject.problems) - 1) * len(coarse_sizes(count, len(subject.circuit)))
    return len(curve_sizes(count)) + others


PHASES: Mapping[str, Phase] = {
    "faithfulness": Phase(
        "faithfulness under every ablation", _faithfulness, lambda s: 3 * len(s.problems)
    ),
    "curve": Phase("curves of the ranking", _curve, _curve_circuits),
    "roc": Phase("known circuits", _roc, lambda s: 0),
    "random_circuits": Phase(
        "random circuits", _random_circuits, lambda s: s.draws * len(FRACTIONS)
    ),
    "completeness": Phase("completeness", _completeness, lambda s: 2 * s.draws),
    "minimality": Phase("minimality", _minimality, lambda s: len(s.circuit)),
    "stability": Phase("stability", _stability, lambda s: 0),
}


def evaluate_run(
    run: Run,
    load: Callable[[Specification], Model],
    *,
    n: int | None = None,
    parts: Collection[str] = EVALUATION_PARTS,
    draws: int = DRAWS,
    repeat: int = 0,
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Evaluates a finished run, and writes and returns `evaluation.json`.

    Args:
        load: Loads the specification's model.
        n: How many held-out prompts; None for the task's own number.
        draws: Random circuits of each size.
        repeat: How often the whole search is repeated on other prompts.
        say: Called with a line at every phase.

    Raises:
        UnweaveError: Also when the model or the task is not what it was.
    """
    for part in parts:
        if part not in EVALUATION_PARTS:
            raise UnweaveError(
                f"unknown part {part!r} of an evaluation: {nearest(part, EVALUATION_PARTS)}"
            )
    check_repeatable(run, repeat)
    wanted = [name for name in PHASES if name == "faithfulness" or name in parts]
    path = run.folder / "evaluation.json"
    with locked(run.folder), preferred(run.specification.precision):
        experiment = set_up_again(run, load)
        settings = _settings(run, experiment, n, draws)
        record = on_first(lambda: read_evaluation(path))
        if record.get("settings") != settings:
            record = {"settings": settings}
        done = [name for name in record.get("parts") or () if name in PHASES]
        missing = [name for name in wanted if name not in done]
        if len(missing) < len(wanted):
            say(f"already there: {', '.join(done)}")
        if missing:
            one = forward_tokens(experiment.model, experiment.discovery_batch)
            with metered() as meter:
                is_edge = run.specification.level == "edge"
                make = _edge_subject if is_edge else _subject
                subject = make(run, experiment, n, draws)
            costs = {**(record.get("forwards") or {}), "set-up": round(meter.tokens / one, 2)}
            for name, found, tokens in _run_phases(subject, missing, say):
                done.append(name)
                costs[name] = round(tokens / one, 2)  # in the unit of run.json's
                record = {**record, **found, "parts": done, "forwards": dict(costs)}
                write_json(path, record)
        for extended in _repeats(run, experiment, record, repeat, say):
            write_json(path, record := extended)
    return record


def _repeats(
    run: Run, experiment: Experiment, record: dict[str, Any], times: int, say: Say
) -> Iterator[dict[str, Any]]:
    """Yields the record with one more repeated search each time."""
    one = forward_tokens(experiment.model, experiment.discovery_batch)
    while len(searches := (record.get("repeats") or {}).get("searches") or []) < times:
        seed = run.specification.seed + len(searches) + 1
        say(f"[{len(searches) + 1}/{times}] the whole search again: prompts of seed {seed}")
        with metered() as meter:
            found = repeated(experiment, seed)
        costs = dict(record.get("forwards") or {})
        costs["repeats"] = round(costs.get("repeats", 0.0) + meter.tokens / one, 2)
        repeats = repeats_record(run.circuit.nodes, [*searches, found])
        record = {**record, "repeats": repeats, "forwards": costs}
        yield record


def set_up_again(run: Run, load: Callable[[Specification], Model]) -> Experiment:
    """The experiment of a finished run.

    Raises:
        UnweaveError: When weights or task file changed since: its figures would be of another. Or
            when files of the run name nodes that the model does not have.
    """
    how = replace(run.specification, precision=asked_precision() or run.specification.precision)
    experiment = Experiment.set_up(how, load(how))
    identity = run.record.get("identity") or {}
    before = identity.get("fingerprint") or {}
    for what, now in experiment.fingerprint.items():
        if before.get(what) not in (None, now):
            raise UnweaveError(
                f"the {what} of {run.folder} changed since the run was made: discover again"
            )
    known = [str(node) for node in experiment.nodes]
    named = (*run.circuit.nodes, *(run.scores.sources if run.scores is not None else ()))
    if strange := sorted({*named} - {*known}):
        close = nearest(strange[0], known, f"{len(known)} nodes such as {known[0]}")
        raise UnweaveError(f"{run.folder}: {strange[0]} is not a node of {how.model}: {close}")
    return experiment


def _settings(run: Run, experiment: Experiment, n: int | None, draws: int) -> dict[str, Any]:
    """What has to be the same for two parts to stand in one evaluation."""
    ranking = [] if run.scores is None else run.scores.ranking()
    named = "\n".join((*run.circuit.nodes, "", *ranking, *(e.name for e in run.circuit.edges)))
    return plain(
        {
            "schema_version": SCHEMA_VERSION,
            "specification": experiment.specification.to_dict(),
            "fingerprint": experiment.fingerprint,
            "nodes": hashlib.blake2b(named.encode(), digest_size=8).hexdigest(),
            "prompts": n or run.specification.held_out,
            "draws": draws,
        }
    )


def _edge_subject(run: Run, experiment: Experiment, n: int | None, draws: int) -> Subject[str]:
    how, edges = run.specification, EdgeExperiment(experiment)
    main = edges.problem("evaluate", n or how.held_out)
    problems = {name: edges.under(main, name) for name in (how.ablation, *ablations)}
    circuit = check_edges(main, run.circuit, str(run.folder))
    scores = run.edge_scores
    return Subject(
        {name: problem for name, problem in problems.items() if problem is not None},
        circuit,
        circuit if scores is None else tuple(scores.ranking()),
        None,
        lambda: {name: float(main.faithfulness([one])[0]) for name, one in edges.known().items()},
        dict,
        draws,
        how.seed,
        {"task": how.task, "model": how.model, "method": run.circuit.method, "level": "edge"},
    )


def _subject(run: Run, experiment: Experiment, n: int | None, draws: int) -> Subject[Site]:
    scores, how = run.scores, run.specification
    main = experiment.problem("evaluate", n or how.held_out)
    known = {str(node): node for node in main.nodes}
    problems = {name: experiment.under(main, name) for name in (how.ablation, *ablations)}
    found = {name: problem for name, problem in problems.items() if problem is not None}
    for problem in found.values():
        _ = problem.reference  # now: it belongs to no phase, so that a phase always costs the same
    return Subject(
        found,
        tuple(known[name] for name in run.circuit.nodes),
        tuple(map(parse, run.circuit.nodes if scores is None else scores.ranking())),
        scores,
        lambda: known_faithfulness(main, experiment.known()),
        lambda: {} if scores is None else roc_of_each(scores, experiment.known()),
        draws,
        how.seed,
        {"task": how.task, "model": how.model, "method": run.circuit.method},
        experiment.task.new_templates,
    )


def _run_phases(
    subject: Subject, names: list[str], say: Say
) -> Iterator[tuple[str, dict[str, Any], float]]:
    """Yields each phase's name, what it found and its cost.

    The time that is left is estimated from the circuits so far.
    """
    left = [max(1, PHASES[name].circuits(subject)) for name in names]
    done, began = 0, time.monotonic()
    for index, name in enumerate(names):
        rest = sum(left[index:])
        seconds = (time.monotonic() - began) / done * rest if done else None
        estimate = "" if seconds is None else f", about {seconds:.0f} s left"
        say(f"[{index + 1}/{len(names)}] {PHASES[name].what} ({left[index]} circuits{estimate})")
        with metered() as meter:
            found = PHASES[name].run(subject)
        yield name, subject.part(**found), meter.tokens
        done += left[index]
