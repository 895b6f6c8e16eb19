"""MIB's circuit track: items of a level scored on some prompts, CPR and CMD on others.

The protocol (docs/mib.md): the nodes are the input (the embedding), every head and every MLP; what
a circuit does not keep is replaced by its activation in the counterfactual prompt. Levels are
nodes, edges between them, and the neurons of a node's output (its coordinates in the residual
stream).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unweave.ablations.kind import prepared
from unweave.behaviours.task import Part, Task
from unweave.circuits import EdgeScores, Scores
from unweave.cost import metered
from unweave.errors import UnweaveError
from unweave.evaluation.mib import MibCurve, MibResult, kept_counts
from unweave.experiments.methods import Method, find_method, read_options
from unweave.experiments.phases import forward_tokens, wait_for_device
from unweave.graph import graph_of
from unweave.model.model import Model
from unweave.patching.circuits import run_circuits
from unweave.patching.edges import run_edges
from unweave.patching.neurons import run_neurons
from unweave.registry import nearest
from unweave.scores.neurons import NeuronScores, score_neurons
from unweave.scores.problem import Problem, Reference
from unweave.scores.score import scores as registered_scores
from unweave.search.search import searches
from unweave.sites import Point, Site

MibLevel = Literal["node", "edge", "neuron"]
LEVELS: tuple[MibLevel, ...] = get_args(MibLevel)
INPUT = Site(Point("embed"))
PEERS = ("decomposition", "eap", "eap-ig:steps=5", "eap-ig:steps=10", "gim", "masks")

Found = Scores | EdgeScores | NeuronScores


def mib_method(text: str) -> Method:
    """A method of the table: "cdt", "eap", "gim", "eap-ig:steps=10:on=activations".

    A name is a score, ranked as it is, or a method of `unweave methods`.

    Raises:
        UnweaveError: For an unknown name or option.
    """
    name, *options = text.split(":")
    method = find_method(name)
    return replace(method.with_options(read_options(method, options)), name=text)


def mib_nodes(model: Model) -> tuple[Site, ...]:
    """The input, every head and every MLP, in the order of the forward pass.

    Raises:
        UnweaveError: For a model that is not a decoder.
    """
    if model.family != "decoder":
        raise UnweaveError(
            f"MIB's protocol is for decoders, {model.architecture} is an {model.family}: use "
            "unweave compare without --protocol"
        )
    inner = sorted([*model.heads(), *model.mlps()], key=lambda site: site.point.depth)
    return (INPUT, *inner)


def mib_problem(
    task: Task, model: Model, part: Part, n: int | None = None, seed: int = 0
) -> Problem:
    """Prompts of a task with all of MIB's nodes under counterfactual patching."""
    nodes = mib_nodes(model)
    batch = task.batch(model, n, seed=seed, part=part)
    points = {node.point for node in nodes}
    ablation = prepared(task, model, "counterfactual", points, seed)(batch)
    return Problem(model, batch, nodes, ablation)


def read_level(text: str) -> MibLevel:
    """A level by its name.

    Raises:
        UnweaveError: For any other text.
    """
    for level in LEVELS:
        if text == level:
            return level
    raise UnweaveError(f"unknown level {text!r}: {nearest(text, LEVELS)}")


@dataclass(frozen=True, eq=False)
class Ranked:
    """Scores of all items of a level, and both of the orders in which MIB keeps them.

    Args:
        signed, absolute: Numbers of the items, the first to keep first.
    """

    found: Found
    signed: tuple[int, ...]
    absolute: tuple[int, ...]


def rank_items(problem: Problem, method: Method, level: MibLevel) -> Ranked:
    """Scores the items of a level.

    A search behind a score (`eliminate`) has an order of its own, which serves for both.

    Raises:
        UnweaveError: When the method's score does not rate this level.
    """
    score = registered_scores[method.score]
    if level == "node":
        found = score.run(problem, method.filled_score())
        if method.search != "top":
            finding = searches[method.search].run(problem, found, method.filled_search())
            place = {name: i for i, name in enumerate(found.sources)}
            order = tuple(place[name] for name in finding.ranking)
            return Ranked(replace(found, order=finding.ranking), order, order)
    elif method.search != "top":
        raise UnweaveError(
            f"{method.name} searches for nodes: at level {level} name a score, such as eap"
        )
    elif level == "edge":
        found = score.run_edges(problem, method.filled_score())
    else:
        found = score_neurons(problem, method.score, method.filled_score())
    values = found.values.flatten()
    return Ranked(found, _descending(values), _descending(values.abs()))


def _descending(values: Float[Tensor, " item"]) -> tuple[int, ...]:
    return tuple(torch.argsort(values, descending=True, stable=True).tolist())


RunKept = Callable[[Bool[Tensor, "circuit item"]], Float[Tensor, "circuit batch"]]


def measure_items(problem: Problem, ranked: Ranked, level: MibLevel) -> MibResult:
    """Faithfulness at MIB's ten shares in both orders, on the problem's prompts."""
    items = len(ranked.signed)
    counts = kept_counts(items)
    full = run_circuits(problem.model, problem.batch, [()], (), problem.ablation)[0]
    kept = torch.zeros(2 * len(counts) + 1, items, dtype=torch.bool)
    for row, (order, count) in enumerate(
        (order, count) for order in (ranked.signed, ranked.absolute) for count in counts
    ):
        kept[row, list(order[:count])] = True
    metric = _runner(problem, level)(kept)
    reference = Reference(full, metric[-1])
    faithfulness = reference.faithfulness(metric[:-1]).tolist()
    accuracy = (metric[:-1] > 0).double().mean(-1).tolist()
    half = len(counts)
    curves = (
        MibCurve(counts, tuple(faithfulness[part]), tuple(accuracy[part]))
        for part in (slice(0, half), slice(half, None))
    )
    return MibResult(*curves)


def _runner(problem: Problem, level: MibLevel) -> RunKept:
    model, batch, ablation = problem.model, problem.batch, problem.ablation
    if level == "node":

        def nodes(kept: Bool[Tensor, "circuit item"]) -> Float[Tensor, "circuit batch"]:
            rows = [row.nonzero().flatten().tolist() for row in kept]
            return problem.metric([[problem.nodes[i] for i in row] for row in rows])

        return nodes
    if level == "neuron":
        return lambda kept: run_neurons(
            model, batch, kept.unflatten(1, (len(problem.nodes), -1)), ablation
        )
    graph = graph_of(model, post_norms=False)

    def edges(kept: Bool[Tensor, "circuit item"]) -> Float[Tensor, "circuit batch"]:
        removed = torch.zeros(len(kept), *graph.mask.shape, dtype=torch.bool)
        removed[:, graph.mask] = ~kept
        return run_edges(model, batch, removed, ablation)

    return edges


@dataclass(frozen=True)
class MibRun:
    """One result of MIB's table, with its scores.

    Args:
        record: Plain data for JSON.
    """

    record: Mapping[str, Any]
    found: Found = field(repr=False)


def mib_result(
    discovery: Problem, held_out: Problem, method: Method, level: MibLevel, about: Mapping[str, Any]
) -> MibRun:
    """Scores on one problem, timed and metered, and measures on the other."""
    one = forward_tokens(discovery.model, discovery.batch)
    wait_for_device(discovery.model)
    began = time.perf_counter()
    with metered() as meter:
        ranked = rank_items(discovery, method, level)
    wait_for_device(discovery.model)
    seconds = time.perf_counter() - began
    result = measure_items(held_out, ranked, level)
    record = {
        **about,
        "level": level,
        "method": method.name,
        "score": method.score,
        "search": method.search,
        "options": {**method.filled_score(), **method.filled_search()},
        "items": len(ranked.signed),
        "prompts": len(discovery.batch),
        "held_out": len(held_out.batch),
        "seconds": seconds,
        "forwards": meter.tokens / one,
        **result.to_json(),
    }
    return MibRun(record, ranked.found)


def mib_means(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Means over seeds for each task, level and method, in the order of the records."""
    keys = list(dict.fromkeys((r["task"], r["level"], r["method"]) for r in records))
    rows = []
    for task, level, method in keys:
        mine = [r for r in records if (r["task"], r["level"], r["method"]) == (task, level, method)]
        good = [r for r in mine if "error" not in r]
        row: dict[str, Any] = {"task": task, "level": level, "method": method, "seeds": len(good)}
        for name in ("cpr", "cmd", "log_accuracy", "seconds", "forwards"):
            row[name] = sum(r[name] for r in good) / len(good) if good else None
        if errors := [r["error"] for r in mine if "error" in r]:
            row["error"] = errors[0]
        rows.append(row)
    return rows
