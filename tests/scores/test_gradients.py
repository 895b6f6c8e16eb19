"""EAP, EAP-IG and RelP against slow direct computations: a copy of the stream per reader."""

from dataclasses import replace

import pytest
import torch
from oracles.copies import copies
from torch import Tensor

from unweave.ablation import activations
from unweave.circuits import EdgeScores
from unweave.decomposition.api import relevance
from unweave.metrics import LOGIT_DIFFERENCE, MARGIN, PROBABILITY_DIFFERENCE
from unweave.model.program import Inputs
from unweave.scores.problem import Problem
from unweave.scores.score import scores as registered
from unweave.sites import parse
from unweave.testing.problem import tiny_problem

BOUND = 1e-9
SHAPES = [
    ("gpt2", None),
    ("llama", "grouped heads"),
    ("llama", "one key head, biases"),
    ("qwen3", None),
    ("gpt_neox", "parallel"),
    ("gemma2", "short window, soft-caps"),
]
WITH_HEAD = {"bert": "masked lm"}
IDS = [", ".join(filter(None, shape)) for shape in SHAPES]


def metric_of(problem: Problem, logits: Tensor) -> Tensor:
    readout = problem.batch.readout
    return readout.measure(logits[torch.arange(len(logits)), readout.read])


def clean_and_base(problem: Problem):
    """Runs of the clean prompts and of what every node is compared with."""
    network, batch = problem.model.network, problem.batch
    with torch.no_grad():
        clean, base = (copies(network, side.tokens) for side in (batch.clean, batch.corrupted))
    if problem.ablation.name == "zero":
        base.computed = {name: torch.zeros_like(x) for name, x in base.computed.items()}
    return clean, base


def written_differences(problem: Problem, scales: dict[int, Tensor]) -> dict[str, Tensor]:
    """What each node writes, less what it would write at its ablation."""
    clean, base = clean_and_base(problem)
    copies(problem.model.network, problem.batch.clean.tokens, post_scales=scales)
    result = {}
    for name, value in clean.computed.items():
        delta = value - base.computed[name]
        if name.startswith("a"):
            site = parse(name)
            w = problem.model.network.body.blocks[site.point.layer].attention
            assert site.unit is not None
            rows = slice(site.unit * w.d_head, (site.unit + 1) * w.d_head)
            delta = delta @ w.out.matrix[:, rows].T * scales[site.point.layer]
        result[name] = delta
    return result


def edge_gradients(problem: Problem, change=lambda name, x: x) -> dict[str, Tensor]:
    """∂m/∂(a reader's own copy of the residual stream), by autograd."""
    leaves: dict[str, Tensor] = {}

    def shift(destination: str, written: dict[str, Tensor]) -> Tensor:
        leaves[destination] = torch.zeros_like(written["input"]).requires_grad_()
        return leaves[destination]

    run = copies(problem.model.network, problem.batch.clean.tokens, shift, change)
    metric = metric_of(problem, run.logits).sum()
    found = torch.autograd.grad(metric, list(leaves.values()), materialize_grads=True)
    return dict(zip(leaves, found, strict=True))


def assert_edges(problem: Problem, scores: EdgeScores, gradients: list[dict[str, Tensor]]) -> None:
    deltas = written_differences(problem, {})
    rows, steps = len(problem.batch), len(gradients)
    means = {name: sum(g[name] for g in gradients) / steps for name in gradients[0]}
    assert scores.values.abs().max() > 1e-4
    for name, value in zip(scores.edges, scores.values.tolist(), strict=True):
        source, destination = name.split("->")
        flow = float((deltas[source] * means[destination]).sum()) / rows
        assert abs(flow - value) < BOUND, name


@pytest.mark.parametrize("ablation", ["counterfactual", "zero"])
@pytest.mark.parametrize("shape", SHAPES, ids=IDS)
def test_eap_edges_equal_copies_per_reader(shape, ablation):
    problem = tiny_problem(*shape, ablation=ablation)
    scores = registered["eap"].run_edges(problem)
    assert_edges(problem, scores, [edge_gradients(problem)])


@pytest.mark.parametrize("metric", [MARGIN, PROBABILITY_DIFFERENCE], ids=lambda m: m.name)
def test_eap_edges_of_other_metrics(metric):
    problem = tiny_problem("gpt2", metric=metric)
    assert_edges(problem, registered["eap"].run_edges(problem), [edge_gradients(problem)])


@pytest.mark.parametrize("shape", SHAPES[:5], ids=IDS[:5])
def test_eap_edges_equal_small_steps(shape):
    """(m(x + εΔ) − m(x − εΔ))/2ε, Δ added at one reader only."""
    problem = tiny_problem(*shape)
    scores, deltas = registered["eap"].run_edges(problem), written_differences(problem, {})
    for name in scores.edges[::41]:
        source, destination = name.split("->")

        def moved(step: float, destination=destination, source=source) -> Tensor:
            def shift(to, written):
                return step * deltas[source] if to == destination else 0.0

            run = copies(problem.model.network, problem.batch.clean.tokens, shift)
            return metric_of(problem, run.logits).mean()

        slope = (moved(1e-5) - moved(-1e-5)) / 2e-5
        assert abs(float(slope) - scores[name]) < 1e-6, name


def mixtures(problem: Problem, steps: int, moves):
    """Runs on the path, `moves(name)` telling which nodes are between ablation and clean."""
    clean, base = clean_and_base(problem)
    for step in range(1, steps + 1):
        alpha = step / steps

        def change(name, x, alpha=alpha):
            if not moves(name):
                return x
            return base.computed[name] + alpha * (clean.computed[name] - base.computed[name])

        yield change


@pytest.mark.parametrize("shape", SHAPES, ids=IDS)
def test_eap_ig_edges_on_inputs(shape):
    problem = tiny_problem(*shape)
    scores = registered["eap-ig"].run_edges(problem, {"steps": 3})
    path = mixtures(problem, 3, lambda name: name == "input")
    assert_edges(problem, scores, [edge_gradients(problem, change) for change in path])


@pytest.mark.parametrize("shape", SHAPES[:2], ids=IDS[:2])
def test_eap_ig_edges_on_activations(shape):
    problem = tiny_problem(*shape)
    scores = registered["eap-ig"].run_edges(problem, {"steps": 2, "on": "activations"})
    deltas, rows = written_differences(problem, {}), len(problem.batch)
    groups = {name.split(".")[0] for name in deltas}
    gradients = {
        group: [
            edge_gradients(problem, change)
            for change in mixtures(problem, 2, lambda name, g=group: name.split(".")[0] == g)
        ]
        for group in groups
    }
    for name, value in zip(scores.edges, scores.values.tolist(), strict=True):
        source, destination = name.split("->")
        mean = sum(g[destination] for g in gradients[source.split(".")[0]]) / 2
        assert abs(float((deltas[source] * mean).sum()) / rows - value) < BOUND, name


def node_gradients(problem: Problem, change=lambda name, x: x) -> dict[str, Tensor]:
    leaves: dict[str, Tensor] = {}

    def watched(name: str, x: Tensor) -> Tensor:
        leaves[name] = torch.zeros_like(x).requires_grad_()
        return change(name, x) + leaves[name]

    run = copies(problem.model.network, problem.batch.clean.tokens, change=watched)
    metric = metric_of(problem, run.logits).sum()
    found = torch.autograd.grad(metric, list(leaves.values()), materialize_grads=True)
    return dict(zip(leaves, found, strict=True))


def assert_nodes(problem: Problem, scores, gradients_of) -> None:
    clean, base = clean_and_base(problem)
    for i, name in enumerate(scores.sources):
        site = parse(name)
        node = str(site.at(None))
        gradients = gradients_of(node)
        flow = sum(g[node] for g in gradients) / len(gradients)
        flow = (flow * (clean.computed[node] - base.computed[node])).sum(-1)
        where = problem.batch.positions.get(str(site.position))
        expected = flow.sum(1) if site.position is None else flow[torch.arange(len(flow)), where]
        assert (scores.examples[i] - expected).abs().max() < BOUND, name


def with_positions(problem: Problem) -> Problem:
    places = (None, "end", "start")
    return replace(problem, nodes=tuple(n.at(where) for n in problem.nodes for where in places))


@pytest.mark.parametrize("ablation", ["counterfactual", "zero"])
@pytest.mark.parametrize("shape", SHAPES, ids=IDS)
def test_eap_nodes(shape, ablation):
    problem = with_positions(tiny_problem(*shape, ablation=ablation))
    gradients = [node_gradients(problem)]
    assert_nodes(problem, registered["eap"].run(problem), lambda node: gradients)


@pytest.mark.parametrize("shape", SHAPES[:2], ids=IDS[:2])
def test_eap_nodes_equal_small_steps(shape):
    problem = tiny_problem(*shape)
    scores, (clean, base) = registered["eap"].run(problem), clean_and_base(problem)
    for name in scores.sources:
        delta = clean.computed[name] - base.computed[name]

        def moved(step: float, name=name, delta=delta) -> Tensor:
            def change(node, x):
                return x + step * delta if node == name else x

            run = copies(problem.model.network, problem.batch.clean.tokens, change=change)
            return metric_of(problem, run.logits).mean()

        assert abs(float((moved(1e-5) - moved(-1e-5)) / 2e-5) - scores[name]) < 1e-6, name


@pytest.mark.parametrize("shape", SHAPES, ids=IDS)
def test_eap_ig_nodes(shape):
    problem = with_positions(tiny_problem(*shape))
    path = list(mixtures(problem, 4, lambda name: name == "input"))
    gradients = [node_gradients(problem, change) for change in path]
    assert_nodes(problem, registered["eap-ig"].run(problem, {"steps": 4}), lambda node: gradients)
    known: dict[str, list] = {}

    def along(node: str) -> list:
        group = node.split(".")[0]
        if group not in known:
            path = mixtures(problem, 2, lambda name: name.split(".")[0] == group)
            known[group] = [node_gradients(problem, change) for change in path]
        return known[group]

    scores = registered["eap-ig"].run(problem, {"steps": 2, "on": "activations"})
    assert_nodes(problem, scores, along)


@pytest.mark.parametrize("metric", [LOGIT_DIFFERENCE, PROBABILITY_DIFFERENCE], ids=lambda m: m.name)
@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "gpt_neox", "bert", "t5", "phi"])
def test_relp_equals_the_linear_rules(name, metric):
    problem = tiny_problem(name, WITH_HEAD.get(name), metric=metric)
    if name not in ("t5", "bert"):
        problem = with_positions(problem)
    rules = "linear, activation=ratio"
    slow = relevance(
        problem.model,
        problem.batch,
        problem.nodes,
        rules=rules,
        ablation=problem.ablation,
        pairs=(),
    )
    scores = registered["relp"].run(problem)
    assert scores.sources == slow.sources
    assert slow.values.abs().max() > 1e-6
    assert (scores.examples - slow.examples).abs().max() < 1e-10


def test_padding_and_chunks_change_no_edge(monkeypatch):
    problem = tiny_problem("llama", rows=2)
    batch, base = problem.batch, problem.ablation
    alone = [
        registered["eap"].run_edges(
            replace(problem, batch=batch.select(part), ablation=base.select(part))
        )
        for part in (slice(0, 1), slice(1, 2))
    ]
    mean = (alone[0].values + alone[1].values) / 2
    together = registered["eap"].run_edges(problem)
    assert (together.values - mean).abs().max() < 1e-12
    monkeypatch.setattr("unweave.scores.edges._BYTES", 1)
    assert (registered["eap"].run_edges(problem).values - mean).abs().max() < 1e-12

    def padded(inputs: Inputs) -> Inputs:
        assert inputs.tokens is not None
        extra = torch.zeros(len(inputs.mask), 3)
        return Inputs(
            torch.cat((inputs.mask, extra.bool()), 1), torch.cat((inputs.tokens, extra.long()), 1)
        )

    batch = replace(batch, clean=padded(batch.clean), corrupted=padded(batch.corrupted))
    base = activations(problem.model, batch.corrupted, problem.ablation.values)
    wide = replace(problem, batch=batch, ablation=replace(problem.ablation, values=base))
    assert (registered["eap"].run_edges(wide).values - mean).abs().max() < 1e-12
