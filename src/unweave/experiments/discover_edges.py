"""`discover --level edge`: from a model and a task to a circuit of edges.

1. Nodes are found as at the level of nodes, where the search begins with them. 2. The score rates
every edge. 3. The search finds edges among the nodes, from the input and to the logits, each
decision an edge-patched run. 4. The circuit of edges is measured by an edge-patched run on prompts
that nothing was chosen on. Everything is kept as it comes, so that a run that was stopped goes on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from jaxtyping import Float
from torch import Tensor

from unweave.ablations.kind import ablations
from unweave.circuits import Circuit, CircuitEdge, EdgeScores, Evidence, Scores
from unweave.errors import UnweaveError
from unweave.estimates import Estimate, estimate
from unweave.evaluation.curves import faithfulness_curve
from unweave.evaluation.verdict import Verdict, verdict
from unweave.experiments.edge_experiment import EdgeExperiment
from unweave.experiments.explanation import Explained, Outcome, explain_found, summary_of
from unweave.experiments.patterns import head_patterns
from unweave.experiments.phases import Ledger, Say, about_model, about_run, find_circuit
from unweave.experiments.prompts import prompt_records
from unweave.experiments.run_folder import RunFolder
from unweave.experiments.specification import Experiment
from unweave.experiments.words import word_scores
from unweave.graph import edge_ends
from unweave.roles.definitions import Roles
from unweave.scores.edge_problem import EdgeProblem
from unweave.scores.score import scores as registered_scores
from unweave.search.search import NOWHERE, Finding, searches
from unweave.sites import parse

_CURVE_PROMPTS = 16
_ENDS = ("input", "logits")


def discover_edges(
    experiment: Experiment,
    folder: RunFolder | None,
    say: Say,
    explain: bool = True,
    roles: Roles | None = None,
) -> Circuit:
    """Finds and measures a circuit of edges.

    Raises:
        UnweaveError: When the model cannot do the task, or has no edges.
    """
    ledger, edges = Ledger(), EdgeExperiment(experiment)
    search = searches[experiment.specification.resolved.search]
    with ledger.phase("set-up"):
        _ = experiment.accuracy, edges.discovery, edges.held_out, edges.evidence
        _ = edges.discovery.reference.scale  # before anything is scored
    if folder is not None:
        folder.begin()
    about_model(experiment, say)
    scores, nodes = None, ()
    if search.nodes_first:
        scores, finding = find_circuit(experiment, folder, ledger, say)
        scores = replace(scores, order=finding.ranking)
        nodes = edges.joined(finding.circuit)
    rated, found = _find_edges(edges, nodes, folder, ledger, say)
    say(f"Measuring {len(found.circuit)} edges on {len(edges.held_out.batch)} other prompts")
    with ledger.phase("evaluation"):
        circuit = _circuit(edges, scores, rated, found)
        assessed = _verdict(edges, circuit)
    circuit, outcome = explain_found(experiment, circuit, explain, say, ledger, roles)
    if folder is not None:
        rated = replace(rated, order=found.ranking)
        _keep(edges, folder, scores, rated, found, circuit, assessed, outcome, ledger)
    return circuit


def _find_edges(
    edges: EdgeExperiment,
    nodes: Sequence[str],
    folder: RunFolder | None,
    ledger: Ledger,
    say: Say,
) -> tuple[EdgeScores, Finding]:
    method, problem = edges.experiment.specification.resolved, edges.discovery
    rated = None if folder is None else folder.edge_scores()
    if rated is None:
        say(f"Scoring {len(problem.nodes)} edges: {method.score}")
        with ledger.phase("edge scores"):
            score = registered_scores[method.score]
            rated = score.run_edges(edges.scored, method.filled_score())
        if folder is not None:
            folder.save_edge_scores(rated)
    where = f"among {len(nodes)} nodes" if nodes else "among all nodes"
    say(f"Searching for edges {where}: {method.search}")
    with ledger.phase("edge search"):
        search, options = searches[method.search], method.filled_search()
        kept = NOWHERE if folder is None else folder.edge_search
        found = search.run_edges(problem, rated, nodes, options, kept)
    return rated, found


def _circuit(
    edges: EdgeExperiment, scores: Scores | None, rated: EdgeScores, found: Finding
) -> Circuit:
    """The circuit with its faithfulness, where it was found and elsewhere."""
    problem, held_out, how = edges.discovery, edges.held_out, edges.experiment.specification
    figure = held_out.reference.estimate(held_out.metric([found.circuit])[0])
    values = dict(zip(rated.edges, rated.values.tolist(), strict=True))
    parts = {edge: (edge,) for edge in found.circuit}
    nodes = {node: _edges_of(node, found.circuit) for node in _nodes(found.circuit)}
    effects = _effects(edges.evidence, found.circuit, parts | nodes)
    order = sorted(nodes, key=lambda node: -effects[node].value)
    known = {} if scores is None else dict(zip(scores.sources, scores.values.tolist(), strict=True))
    return Circuit(
        tuple(order),
        tuple(known.get(node, float("nan")) for node in order),
        figure.value,
        float(problem.faithfulness([found.circuit])[0]),
        len(edges.experiment.nodes),
        how.task,
        how.model,
        how.resolved.name,
        (figure.low, figure.high),
        figure.prompts,
        {node: Evidence(effects[node].value, _ends(effects[node])) for node in order},
        tuple(
            CircuitEdge(edge, values[edge], effects[edge].value, _ends(effects[edge]))
            for edge in found.circuit
        ),
        len(held_out.nodes),
    )


def _nodes(circuit: Sequence[str]) -> list[str]:
    """The nodes that some edges lead between, in the order of their first edge."""
    ends = (end for edge in circuit for end in edge_ends(edge)[:2])
    return [end for end in dict.fromkeys(ends) if end not in _ENDS]


def _edges_of(node: str, circuit: Sequence[str]) -> tuple[str, ...]:
    return tuple(edge for edge in circuit if node in edge_ends(edge)[:2])


def _effects(
    problem: EdgeProblem, circuit: Sequence[str], parts: Mapping[str, Sequence[str]]
) -> dict[str, Estimate]:
    """What faithfulness loses without each part of the circuit, with its error."""
    reference = problem.reference
    left = [[edge for edge in circuit if edge not in {*gone}] for gone in parts.values()]
    base: Float[Tensor, " batch"] = reference.samples(problem.metric([circuit])[0])
    falls = base - reference.samples(problem.metric(left))
    return {name: estimate(fall) for name, fall in zip(parts, falls, strict=True)}


def _ends(found: Estimate) -> tuple[float, float]:
    return found.low, found.high


def _verdict(edges: EdgeExperiment, circuit: Circuit) -> Verdict:
    """The circuit under every ablation, beside random ones of as many edges."""
    how, held_out = edges.experiment.specification, edges.held_out
    names = dict.fromkeys((how.ablation, *ablations))
    problems = {name: edges.under(held_out, name) for name in names}
    known = {name: one for name, one in problems.items() if one is not None}
    effects = {edge.name: edge.effect for edge in circuit.edges}
    checked, new = edges.evidence.batch, edges.experiment.task.new_templates
    return verdict(known, tuple(effects), effects, len(checked), {}, how.seed, new)


def edge_curve_sizes(size: int, count: int) -> list[int]:
    """Sizes around the circuit's own, and MIB's shares of all edges."""
    around = {0, size // 4, size // 2, 3 * size // 4, size, 2 * size, 4 * size}
    shares = {round(share * count) for share in (0.001, 0.01, 0.1, 0.5, 1.0)}
    return sorted({min(one, count) for one in around | shares})


def _keep(
    edges: EdgeExperiment,
    folder: RunFolder,
    scores: Scores | None,
    rated: EdgeScores,
    found: Finding,
    circuit: Circuit,
    assessed: Verdict,
    outcome: Outcome,
    ledger: Ledger,
) -> None:
    """Writes everything that was found."""
    experiment, held_out = edges.experiment, edges.held_out
    if scores is not None:
        folder.save_scores(scores)
    if isinstance(outcome, Explained):
        folder.save_explanation(outcome.to_json())
    folder.save_edge_scores(rated)
    sites = tuple(map(parse, circuit.nodes))
    folder.save_patterns(head_patterns(experiment.model, held_out.batch.clean, sites))
    with ledger.phase("words"):
        words = word_scores(experiment.model, held_out.batch)
    with ledger.phase("curve"):
        some = held_out.select(slice(0, min(len(held_out.batch), _CURVE_PROMPTS)))
        sizes = edge_curve_sizes(len(found.circuit), len(held_out.nodes))
        curve = faithfulness_curve(some, rated.ranking(), sizes)
    record = {
        **about_run(experiment, held_out.reference),
        "prompts": {
            "discover": prompt_records(edges.discovery),
            "evaluate": prompt_records(held_out, held_out.metric([found.circuit])[0]),
        },
        "edge_rounds": [asdict(one) for one in found.rounds],
        "verdict": assessed.to_json(circuit),
        "edge_curve": asdict(curve),
        "words": words,
        "explanation": summary_of(outcome),
        "nodes_total": circuit.total,
        "edges_total": circuit.edges_total,
        "seconds": ledger.seconds,
        "forwards": ledger.forwards(edges.scored),
    }
    folder.finish(circuit, record)


def check_edges(problem: EdgeProblem, circuit: Circuit, where: str) -> tuple[str, ...]:
    """The edges of a circuit that was read from a file.

    Raises:
        UnweaveError: For an edge that the model does not have.
    """
    for edge in circuit.edges:
        if edge.name not in problem.graph.index:
            raise UnweaveError(f"{where}: {edge.name} is not an edge of {problem.model.name}")
    return tuple(edge.name for edge in circuit.edges)
