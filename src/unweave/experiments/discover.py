"""`discover`: from a model and a task to a circuit.

1. Prompts are drawn, ablations recorded; a model that cannot do the task is an error. 2. The score
rates every node. 3. The search finds the circuit. 4. It is measured on prompts that nothing was
chosen on. 5. Each of its nodes is explained. Everything is kept as it comes, so that a run that was
stopped goes on.
"""

from dataclasses import asdict, replace
from pathlib import Path

from unweave.ablations.kind import ablations
from unweave.asked import preferred
from unweave.behaviours.task import Task
from unweave.circuits import Circuit, Evidence, Scores
from unweave.distributed import ranks
from unweave.errors import UnweaveError
from unweave.evaluation.certainty import certainty
from unweave.evaluation.curves import Curve, faithfulness_curve
from unweave.evaluation.verdict import Verdict, verdict
from unweave.experiments.discover_edges import discover_edges
from unweave.experiments.explanation import Explained, Outcome, explain_found, summary_of
from unweave.experiments.patterns import head_patterns
from unweave.experiments.phases import (
    Ledger,
    Say,
    about_model,
    about_run,
    find_circuit,
)
from unweave.experiments.prompt_details import patterns_kept, prompt_details
from unweave.experiments.prompts import prompt_records
from unweave.experiments.run_folder import RunFolder
from unweave.experiments.shared_folder import open_folder
from unweave.experiments.specification import Experiment, Specification
from unweave.model.model import Model
from unweave.roles.definitions import Roles, read_roles
from unweave.scores.problem import Problem
from unweave.search.search import PRICE, Finding
from unweave.sites import parse

_CANDIDATES = 8  # nodes outside the circuit that may take another's place


def discover(
    model: Model,
    task: Task | str,
    specification: Specification | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    say: Say = lambda text: None,
    explain: bool = True,
    roles: str | Path | None = None,
) -> Circuit:
    """Finds the circuit of a behaviour, and measures it on other prompts.

    Args:
        task: A task, its name, or a .jsonl or .csv file.
        specification: Method, nodes, ablation, seed and options; the defaults are meant to be good.
        out: A folder for everything that was found; None keeps nothing.
        resume: Go on with the run that `out` holds.
        say: Called with a line at every phase.
        explain: Whether to say what each node does (`Circuit.explain`); changes no other figure.
        roles: A TOML file of roles to add to those of unweave.

    Raises:
        UnweaveError: When the model cannot do the task, or the folder cannot be used.
    """
    name = task if isinstance(task, str) else task.name
    specification = specification or Specification(name, model.name)
    given = task if isinstance(task, Task) else None
    known = read_roles(roles)
    experiment = Experiment.set_up(specification, model, given, explain)
    if specification.level == "edge" and ranks().count > 1:
        raise UnweaveError("circuits of edges are found in one process: start it without torchrun")
    run = discover_edges if specification.level == "edge" else _discover
    with preferred(specification.precision):
        if out is None:
            return run(experiment, None, say, explain, known)
        identity = {"specification": specification.to_dict(), "fingerprint": experiment.fingerprint}
        folder = open_folder(Path(out), identity, resume)
        with folder.locked():
            return folder.circuit() or run(experiment, folder, say, explain, known)


def _discover(
    experiment: Experiment,
    folder: RunFolder | None,
    say: Say,
    explain: bool,
    roles: Roles | None,
) -> Circuit:
    ledger = Ledger()
    with ledger.phase("set-up"):
        experiment.prepare()
    held_out = experiment.held_out
    if folder is not None:
        folder.begin()
    about_model(experiment, say)
    scores, finding = find_circuit(experiment, folder, ledger, say)
    scores = replace(scores, order=finding.ranking)
    say(f"Measuring {len(finding.circuit)} nodes on {len(held_out.batch)} other prompts")
    with ledger.phase("evaluation"):
        circuit = _circuit(experiment, scores, finding)
        assessed = _verdict(experiment, finding, circuit)
        curve = _curve(held_out, scores, circuit.size)
    circuit, outcome = explain_found(experiment, circuit, explain, say, ledger, roles)
    if folder is not None:
        _keep(experiment, folder, scores, finding, circuit, assessed, curve, outcome, ledger)
    return circuit


def _circuit(experiment: Experiment, scores: Scores, finding: Finding) -> Circuit:
    """The circuit with its faithfulness, where it was found and elsewhere."""
    problem, held_out = experiment.discovery, experiment.held_out
    found = held_out.reference.estimate(held_out.metric([finding.sites])[0])
    how = experiment.specification
    return Circuit(
        finding.circuit,
        tuple(scores[name] for name in finding.circuit),
        found.value,
        float(problem.faithfulness([finding.sites])[0]),
        len(problem.nodes),
        how.task,
        how.model,
        how.resolved.name,
        (found.low, found.high),
        found.prompts,
        _evidence(experiment, finding),
    )


def _evidence(experiment: Experiment, finding: Finding) -> dict[str, Evidence]:
    """How certain each node is, on check prompts."""
    own = set(finding.circuit)
    outside = [parse(name) for name in finding.ranking if name not in own][:_CANDIDATES]
    price = experiment.specification.resolved.filled_search().get("price", PRICE.default)
    return certainty(experiment.check, finding.sites, outside, price)


def _verdict(experiment: Experiment, finding: Finding, circuit: Circuit) -> Verdict:
    """The circuit under every ablation, beside random ones."""
    held_out, how = experiment.held_out, experiment.specification
    names = dict.fromkeys((how.ablation, *ablations))
    problems = {name: experiment.under(held_out, name) for name in names}
    known = {name: one for name, one in problems.items() if one is not None}
    effects = {name: one.effect for name, one in circuit.evidence.items()}
    over = circuit.faithfulness > 1 and circuit.interval[0] > 1
    lowering = _lowering(experiment, finding) if over else {}
    checked, new = len(experiment.check.batch), experiment.task.new_templates
    return verdict(known, finding.sites, effects, checked, lowering, how.seed, new)


def _lowering(experiment: Experiment, finding: Finding) -> dict[str, float]:
    """Nodes outside the circuit that lower the metric, the strongest first."""
    problem, own = experiment.discovery, set(finding.circuit)
    names = [name for name in finding.ranking if name not in own][: 2 * _CANDIDATES]
    changed = problem.flipped(finding.sites, [parse(name) for name in names])
    gains = problem.reference.faithfulness(changed) - problem.faithfulness([finding.sites])
    found = sorted(zip(names, gains.tolist(), strict=True), key=lambda pair: pair[1])
    return {name: gain for name, gain in found if gain < 0}


def _curve(problem: Problem, scores: Scores, size: int) -> Curve:
    """A coarse curve on the prompts of the circuit's faithfulness, so that the two agree;
    `unweave evaluate` draws a finer one."""
    count = len(problem.nodes)
    sizes = {0, 1, size // 4, size // 2, 3 * size // 4, size, 3 * size // 2, 2 * size, 4 * size}
    sizes = sorted({min(one, count) for one in sizes} | {count // 2, count})
    return faithfulness_curve(problem, [parse(name) for name in scores.ranking()], sizes)


def _keep(
    experiment: Experiment,
    folder: RunFolder,
    scores: Scores,
    finding: Finding,
    circuit: Circuit,
    assessed: Verdict,
    curve: Curve,
    outcome: Outcome,
    ledger: "Ledger",
) -> None:
    """Writes everything that was found."""
    held_out = experiment.held_out
    if isinstance(outcome, Explained):
        folder.save_explanation(outcome.to_json())
    folder.save_scores(scores)
    kept = patterns_kept(held_out, len(finding.sites))
    folder.save_patterns(head_patterns(experiment.model, held_out.batch.clean, finding.sites, kept))
    with ledger.phase("prompts"):
        metrics = held_out.metric([finding.sites])[0]
        details = prompt_details(held_out, finding.sites, metrics)
    record = {
        **about_run(experiment, held_out.reference),
        "prompts": {
            "discover": prompt_records(experiment.discovery),
            "evaluate": prompt_records(held_out, metrics, details),
        },
        "rounds": [asdict(one) for one in finding.rounds],
        "elimination": [asdict(step) for one in finding.rounds for step in one.steps],
        "verdict": assessed.to_json(circuit),
        "overshoot": [{"site": n, "effect": e} for n, e in assessed.overshoot.items()],
        "curve": asdict(curve),
        "summary": {
            "curve_gap": curve.gap,
            "curve_area": curve.area,
            "k80": curve.first(0.8),
            "k95": curve.first(0.95),
            "prompts": curve.prompts,
        },
        "words": details[0]["words"],
        "explanation": summary_of(outcome),
        "nodes_total": circuit.total,
        "seconds": ledger.seconds,
        "forwards": ledger.forwards(experiment.discovery),
    }
    folder.finish(circuit, record)
