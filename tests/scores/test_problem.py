"""Problems: every node kind and ablation against plain runs; the scale of faithfulness."""

from dataclasses import replace

import numpy
import pytest
import torch
from oracles.closeness import assert_close
from oracles.patched import patched

from unweave.ablation import ZERO, Ablation, activations
from unweave.ablations.kind import ablations, task_ablation
from unweave.behaviours.file import find_task
from unweave.errors import NotFiniteError, UnweaveError
from unweave.evaluation.faithfulness import from_metric
from unweave.experiments.specification import Experiment, Specification
from unweave.model.checkpoint import architectures
from unweave.model.loading import load
from unweave.model.program import Inputs
from unweave.nodes.node import find_nodes, node_kinds
from unweave.patching.circuits import run_circuits
from unweave.scores.problem import Problem, Reference
from unweave.scores.score import scores as registered
from unweave.sites import OTHER, Point, Site
from unweave.testing.inputs import random_inputs
from unweave.testing.oracle import build
from unweave.testing.problem import LENGTH, tiny_problem

GRANULARITIES = [
    *node_kinds,
    *(f"{kind}@position" for kind in node_kinds),
    "head@token",
    "qkv@token",
]
FAMILIES = [("gpt2", None), ("llama", "grouped heads"), ("gemma2", "short window, soft-caps")]


def problem_of(family: str, variant: str | None, granularity: str, **more) -> Problem:
    plain = tiny_problem(family, variant, **more)
    batch = plain.batch
    nodes = find_nodes(plain.model, granularity, False, batch.clean, batch.positions)
    return tiny_problem(family, variant, nodes=nodes, **more)


def at_numbers(site: Site, problem: Problem, row: int) -> list[Site]:
    """A node of one example as sites at numbered positions, by the meaning of its name."""
    length = int(problem.batch.clean.mask[row].sum())
    named = {name: int(where[row]) for name, where in problem.batch.positions.items()}
    if site.position is None:
        return [site.at(i) for i in range(length)]
    if site.position == OTHER:
        return [site.at(i) for i in range(length) if i not in named.values()]
    return [site.at(named.get(str(site.position), site.position))]


def plain_metric(problem: Problem, circuit: list[Site]) -> torch.Tensor:
    """Each example alone: whatever its points hold at a position that no node keeps is replaced."""
    model, metrics = problem.model, []
    for row in range(len(problem.batch)):
        one = slice(row, row + 1)
        kept = {site for node in circuit for site in at_numbers(node, problem, row)}
        units = {Site(p, u) for p in problem.points for u in _units(problem, p)}
        every = {site for unit in units for site in at_numbers(unit, problem, row)}
        base = problem.ablation.select(one)
        values = {p: v if base.rows is None else v[base.rows] for p, v in base.values.items()}
        inputs = problem.batch.clean.select(one)
        out = patched(model.network, inputs, list(every - kept), values)[Point("logits")]
        readout = problem.batch.readout.select(one)
        metrics.append(readout.measure(out[[0], readout.read])[0])
    return torch.stack(metrics)


def _units(problem: Problem, point: Point) -> list[int | None]:
    return [None] if point.kind == "mlp" else list(range(problem.model.units(point)))


def drawn(problem: Problem, share: float, seed: int = 0) -> list[Site]:
    draw = numpy.random.default_rng(seed)
    return [node for node in problem.nodes if draw.random() < share]


@pytest.mark.parametrize("ablation", ["counterfactual", "zero"])
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("shape", FAMILIES, ids=lambda shape: shape[0])
def test_circuits_of_every_kind_of_node(shape, granularity, ablation):
    problem = problem_of(*shape, granularity, ablation=ablation, rows=2)
    circuits = [drawn(problem, 0.5), drawn(problem, 0.9, seed=1), []]
    fast = problem.metric(circuits)
    for circuit, metric in zip(circuits, fast, strict=True):
        slow = plain_metric(problem, circuit)
        assert (metric - slow).abs().max() < 1e-10
    assert (fast[0] - problem.reference.full).abs().max() > 1e-6
    some = [*circuits[0][:2], *(n for n in problem.nodes if n not in circuits[0])][:4]
    flipped = problem.flipped(circuits[0], some)
    changed = [tuple(set(circuits[0]) ^ {node}) for node in some]
    assert (flipped - problem.metric(changed)).abs().max() < 1e-10


@pytest.mark.parametrize("granularity", ["neuron", "qkv", "qkv@position", "neuron@position"])
@pytest.mark.parametrize("shape", FAMILIES[:2], ids=lambda shape: shape[0])
def test_scores_of_every_kind_of_node(shape, granularity):
    """Patching by leaving one out; EAP by a small step from the node towards its ablation."""
    problem = problem_of(*shape, granularity, rows=2)
    some = list(problem.nodes)[:: max(1, len(problem.nodes) // 7)]
    problem = replace(problem, nodes=tuple(some))
    exact, slope = registered["patching"].run(problem), registered["eap"].run(problem)
    clean = activations(problem.model, problem.batch.clean, problem.points)
    for i, node in enumerate(some):
        for row in range(len(problem.batch)):
            sites, one = at_numbers(node, problem, row), slice(row, row + 1)
            z, mu = clean[node.point][one], problem.ablation.values[node.point][one]
            readout = problem.batch.readout.select(one)

            def moved(step: float, z=z, mu=mu, one=one, sites=sites, readout=readout) -> float:
                base = {sites[0].point: z + step * (mu - z)}
                inputs = problem.batch.clean.select(one)
                out = patched(problem.model.network, inputs, sites, base)[Point("logits")]
                return float(readout.measure(out[[0], readout.read])[0])

            assert abs(float(exact.examples[i, row]) - (moved(0.0) - moved(1.0))) < 1e-10, node
            by_hand = (moved(-1e-5) - moved(1e-5)) / 2e-5
            assert abs(float(slope.examples[i, row]) - by_hand) < 1e-6, node


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("granularity", ["head", "head@position", "head@token"])
def test_the_whole_model_is_transformers_own(family, granularity):
    problem = problem_of(family, None, granularity)
    tiny = architectures[family].tiny
    oracle = build(tiny[next(iter(tiny))], torch.float64)
    inputs = random_inputs(oracle.config, LENGTH, dtype=torch.float64, seed=0)
    with torch.no_grad():
        assert inputs.tokens is not None
        logits = oracle(inputs.tokens[: len(problem.batch)]).logits
    readout = problem.batch.readout
    metric = readout.measure(logits[torch.arange(len(problem.batch)), readout.read])
    # transformers turns queries and keys by angles in float32.
    assert_close(problem.reference.full, metric, relative=1e-4)
    named = [n for n in problem.nodes if n.position != OTHER]
    if granularity == "head@position":  # what no node of a circuit names is ablated
        assert (problem.metric([named])[0] - metric).abs().max() > 1e-3
    everything = problem.metric([problem.nodes])[0]
    assert (everything - problem.reference.full).abs().max() < 1e-12


def test_named_positions_alone_are_not_the_wired_circuit():
    """a0.h0 flags a name where it stands, not at the end: half of the effect is missing."""
    name = "wired-inhibition"
    specification = Specification(name, name, granularity="head@position", prompts=16)
    problem = Experiment.set_up(specification, load(name)).discovery
    assert {node.position for node in problem.nodes} == {"end", OTHER}
    end = [node for node in problem.nodes if node.position == "end"]
    full, empty = (float(x.mean()) for x in (problem.reference.full, problem.reference.empty))
    slow = (float(plain_metric(problem, end).mean()) - empty) / (full - empty)
    assert float(problem.faithfulness([end])[0]) == pytest.approx(slow, abs=1e-4)
    assert 0.4 < slow < 0.7
    tokens = problem.batch.clean.tokens
    logits = problem.model.logits(tokens)[
        torch.arange(len(problem.batch)), problem.batch.readout.read
    ]
    assert full == pytest.approx(float(problem.batch.readout.measure(logits).mean()), abs=1e-4)


def test_other_is_every_token_without_a_name():
    problem = problem_of("gpt2", None, "head@position")
    heads = problem.model.heads()
    split = [head.at(where) for head in heads[:2] for where in ("end", "start", OTHER)]
    whole = replace(problem, nodes=tuple(heads)).metric([heads[:2]])
    assert (problem.metric([split]) - whole).abs().max() < 1e-12


@pytest.mark.parametrize("name", list(ablations))
def test_every_ablation_by_its_meaning(name):
    task, model = find_task("wired-induction"), load("wired-induction")
    batch, points = task.batch(model, 6), (Point("z", 1), Point("z", 2))
    built = task_ablation(task, model, batch, name, points, seed=0)
    clean = activations(model, batch.clean, points)
    known = {"zero", "mean", "counterfactual"}
    assert name in known, f"write down what {name} means"
    for point in points:
        if name == "zero":
            expected = torch.zeros_like(clean[point])
        elif name == "counterfactual":
            expected = activations(model, batch.corrupted, points)[point]
        else:
            reference = task.batch(model, seed=0, part="reference")
            rows = activations(model, reference.corrupted, points)[point]
            means = [rows[reference.groups == group].mean(0) for group in batch.groups]
            expected = torch.stack(means)
        assert_close(built.at(point, clean[point]), expected)


def test_kinds_of_nodes_are_checked():
    problem = tiny_problem("gpt2")
    batch, model = problem.batch, problem.model
    with pytest.raises(UnweaveError, match="unknown node kind 'heads': did you mean head"):
        find_nodes(model, "heads", False, batch.clean, batch.positions)
    with pytest.raises(UnweaveError, match="expected head, head@position"):
        find_nodes(model, "head@end", False, batch.clean, batch.positions)
    mask = torch.ones_like(batch.clean.mask)
    mask[0, -1] = False
    ragged = Inputs(mask, batch.clean.tokens)
    with pytest.raises(UnweaveError, match=r"5 to 6 tokens.*use head@position"):
        find_nodes(model, "head@token", False, ragged, batch.positions)
    both = find_nodes(model, "head", True, batch.clean, batch.positions)
    assert set(both) == {*model.heads(), *model.mlps()}
    assert [n.point.depth for n in both] == sorted(n.point.depth for n in both)
    t5 = tiny_problem("t5")
    with pytest.raises(UnweaveError, match="positions have no names in common"):
        find_nodes(t5.model, "head@position", False, t5.batch.clean, t5.batch.positions)


@pytest.mark.parametrize("size", [1.0, 1e-4, 1e4])
@pytest.mark.parametrize("share", [0.0, 3e-7])
def test_no_scale_is_an_error(size, share):
    full = torch.tensor([1.0, -0.5]) * size
    reference = Reference(full, full - share * size)
    with pytest.raises(UnweaveError, match=r"no effect to be faithful to; choose another"):
        _ = reference.scale
    with pytest.raises(UnweaveError, match="no effect"):
        reference.faithfulness(full)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_metric_that_is_not_finite_is_an_error_of_its_own(value):
    reference = Reference(torch.tensor([1.0, 2.0]), torch.tensor([value, 0.0]))
    with pytest.raises(NotFiniteError, match=r"1\.5 for the whole model and (nan|inf) with every"):
        reference.faithfulness(torch.zeros(2))
    with pytest.raises(NotFiniteError):  # and not the figure of an ablation without a scale
        from_metric(reference, torch.zeros(2))


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_a_small_metric_has_a_scale(size):
    full, empty = torch.tensor([2.0, 4.0]) * size, torch.tensor([1.0, 1.0]) * size
    reference = Reference(full, empty)
    assert float(reference.faithfulness((full + empty) / 2)) == pytest.approx(0.5)
    negative = Reference(empty, full)
    assert float(negative.faithfulness((full + empty) / 2)) == pytest.approx(0.5)


def test_a_problem_whose_ablation_changes_nothing():
    problem = tiny_problem("gpt2")
    values = activations(problem.model, problem.batch.clean, problem.ablation.values)
    same = replace(problem, ablation=Ablation("clean", values))
    with pytest.raises(UnweaveError, match="leaves the metric at"):
        same.faithfulness([problem.nodes])


def test_the_interval_is_the_bootstraps():
    """Of the ratio of means: numerator and denominator vary together."""
    draw = torch.Generator().manual_seed(0)
    full = 3 + torch.randn(200, generator=draw)
    empty = 0.5 * torch.randn(200, generator=draw)
    metric = empty + 0.8 * (full - empty) + 0.5 * torch.randn(200, generator=draw)
    found = Reference(full, empty).estimate(metric)
    assert found.value == pytest.approx(float((metric - empty).mean() / (full - empty).mean()))
    rows = torch.randint(200, (4000, 200), generator=draw)
    values = (metric - empty)[rows].mean(1) / (full - empty)[rows].mean(1)
    low, high = torch.quantile(values, torch.tensor([0.025, 0.975])).tolist()
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.01)
    assert found.half == pytest.approx((high - low) / 2, rel=0.1)
    assert found.prompts == 200
    # A circuit that is the model on every prompt has no error, however much prompts differ.
    assert Reference(full, empty).estimate(full).half == pytest.approx(0, abs=1e-6)


def test_a_part_of_a_problem_is_those_prompts():
    problem = tiny_problem("gpt2")
    part = problem.select(slice(1, 3))
    assert len(part.batch) == 2
    assert (part.metric([()]) - problem.metric([()])[:, 1:]).abs().max() < 1e-12
    zero = run_circuits(problem.model, problem.batch, [()], problem.points, ZERO)
    assert (zero - problem.metric([()])).abs().max() > 1e-6
