"""Edge scores against edge-patched runs, against gradients by hand, and within memory."""

import functools
import re
from dataclasses import dataclass, field, replace

import pytest
import torch
from oracles.patched import patched
from torch import Tensor

from unweave.ablation import counterfactual
from unweave.decomposition.api import relevance
from unweave.decomposition.edges import edge_relevance
from unweave.decomposition.ruleset import rulesets
from unweave.errors import UnweaveError
from unweave.graph import Graph, graph_of, graph_points
from unweave.metrics import MARGIN, PROBABILITY_DIFFERENCE
from unweave.model.algebra import Plain
from unweave.model.program import run
from unweave.patching.circuits import repeat_inputs
from unweave.patching.edges import EdgePatch, run_edges
from unweave.scores.problem import Problem
from unweave.sites import Point, parse
from unweave.testing.problem import tiny_problem

FAMILIES = [("gpt2", None), ("llama", None), ("qwen3", None), ("gpt_neox", "parallel")]


def scored(problem: Problem, **options):
    return edge_relevance(problem.model, problem.batch, problem.ablation, **options)


def removed_one_by_one(graph: Graph, names: list[str]) -> Tensor:
    removed = torch.zeros(len(names), *graph.mask.shape, dtype=torch.bool)
    for row, name in zip(removed, names, strict=True):
        row[graph.index[name]] = True
    return removed


def removals(problem: Problem, names: list[str]) -> Tensor:
    """m(M) − m(M without the edge), one edge-patched run for each."""
    graph = graph_of(problem.model)
    nothing = torch.zeros(1, *graph.mask.shape, dtype=torch.bool)
    removed = torch.cat((nothing, removed_one_by_one(graph, names)))
    left = run_edges(problem.model, problem.batch, removed, problem.ablation).mean(1)
    return left[0] - left[1:]


@pytest.mark.parametrize("shape", FAMILIES, ids=str)
def test_exact_scores_are_edge_patched_runs(shape):
    problem = tiny_problem(*shape)
    names = list(graph_of(problem.model).edges)
    scores = scored(problem, variant="exact")
    assert list(scores.edges) == names
    assert scores.about["variant"] == "exact"
    expected = removals(problem, names)
    assert expected.abs().max() > 0.01
    assert (scores.values - expected).abs().max() < 1e-9


@pytest.mark.parametrize("metric", [MARGIN, PROBABILITY_DIFFERENCE], ids=lambda m: m.name)
def test_exact_scores_of_other_metrics(metric):
    problem = tiny_problem("gpt2", metric=metric)
    names = list(graph_of(problem.model).edges[::7])
    found = scored(problem, variant="exact", edges=names)
    assert list(found.edges) == names
    assert (found.values - removals(problem, names)).abs().max() < 1e-9


@dataclass(eq=False)
class Watch(EdgePatch):
    """An edge-patched run that keeps what heads and neurons put out."""

    found: dict[Point, Tensor] = field(default_factory=dict)

    def at(self, x: Tensor, point: Point) -> Tensor:
        self.found[point] = x
        return super().at(x, point)


@dataclass(eq=False)
class Tracked(Plain):
    """A plain run in autograd's graph, read at one position."""

    found: dict[Point, Tensor] = field(default_factory=dict)

    def at(self, x: Tensor, point: Point) -> Tensor:
        if not x.requires_grad:
            x = x.detach().requires_grad_()
        x.retain_grad()
        self.found[point] = x
        return x


def outputs_and_gradients(problem: Problem) -> tuple[dict[Point, Tensor], dict[Point, Tensor]]:
    """What every point holds in a plain run, and the metric's gradient there."""
    batch, ops = problem.batch, Tracked()
    logits = run(problem.model.network, batch.clean, ops)
    read = logits[torch.arange(len(batch)), batch.readout.read]
    batch.readout.measure(read).sum().backward()
    gradients = {p: x.grad for p, x in ops.found.items() if x.grad is not None}
    return {p: ops.found[p].detach() for p in gradients}, gradients


@pytest.mark.parametrize("shape", FAMILIES, ids=str)
def test_local_scores_are_the_readers_own_loss_times_its_gradient(shape):
    """Under `removal` a reader's loss is that of the run without the edge."""
    problem = tiny_problem(*shape)
    model, batch, graph = problem.model, problem.batch, graph_of(problem.model)
    scores, (plain, slope) = scored(problem), outputs_and_gradients(problem)
    names = [name for name in graph.edges if not name.endswith("->logits")]
    reads = batch.readout.read.repeat(len(names))[:, None]
    removed = removed_one_by_one(graph, names)
    ops = Watch(graph, model.network.body.blocks, removed, problem.ablation, len(batch), reads)
    with torch.no_grad():
        run(model.network, repeat_inputs(batch.clean, len(names)), ops)
    examples, last = torch.arange(len(batch)), len(model.network.body.blocks) - 1
    for i, name in enumerate(names):
        site = parse(name.split("->")[1].split("<")[0])
        point = Point("neuron", site.point.layer) if site.unit is None else site.point
        before, gradient = plain[point], slope[point]
        if point == Point("neuron", last):
            before, gradient = (
                x[examples, batch.readout.read][:, None] for x in (before, gradient)
            )
        loss = before - ops.found[point].unflatten(0, (len(names), -1))[i]
        product = loss * gradient
        product = product if site.unit is None else product[:, :, site.unit]
        assert abs(scores[name] - float(product.sum()) / len(batch)) < 1e-10, name
    direct = [name for name in graph.edges if name.endswith("->logits")]
    found = torch.tensor([scores[name] for name in direct], dtype=torch.float64)
    assert (found - removals(problem, direct)).abs().max() < 1e-9


def test_total_paths_read_the_stream_of_the_ablated_run():
    """GPT-2: head 1 of layer 2 with the queries (or keys, or values) of the run without a node."""
    problem = tiny_problem("gpt2")
    model, batch = problem.model, problem.batch
    scores, (plain, slope) = scored(problem, paths="total"), outputs_and_gradients(problem)
    mask = torch.ones(6, 6, dtype=torch.bool).tril()

    def z(parts: dict[str, Tensor]) -> Tensor:
        q, k, v = (parts[part][:, :, 1] for part in "qkv")
        pattern = (q @ k.transpose(1, 2) / 6**0.5).masked_fill(~mask, -1e30).softmax(-1)
        return pattern @ v

    clean = {part: plain[Point(part, 2)] for part in "qkv"}
    assert (z(clean) - plain[Point("z", 2)][:, :, 1]).abs().max() < 1e-12
    for node in ("embed", "a0.h2", "m0", "a1.h3", "m1"):
        values = problem.ablation.values
        without = patched(model.network, batch.clean, [parse(node)], values)
        for part in "qkv":
            loss = z(clean) - z({**clean, part: without[Point(part, 2)]})
            expected = (loss * slope[Point("z", 2)][:, :, 1]).sum() / len(batch)
            name = f"{node.replace('embed', 'input')}->a2.h1<{part}>"
            assert abs(scores[name] - float(expected)) < 1e-10, name
        neuron = plain[Point("neuron", 2)] - without[Point("neuron", 2)]
        expected = (neuron * slope[Point("neuron", 2)]).sum() / len(batch)
        name = f"{node.replace('embed', 'input')}->m2"
        assert abs(scores[name] - float(expected)) < 1e-10, name


@pytest.mark.parametrize("rules", list(rulesets))
def test_every_rule_set_scores_edges(rules):
    """By all paths the logits get what the node's own score says."""
    problem = tiny_problem("llama")
    graph = graph_of(problem.model)
    total = scored(problem, rules=rules, paths="total")
    nodes = [name.replace("input", "embed") for name in graph.sources]
    own = relevance(problem.model, problem.batch, nodes, None, rules, problem.ablation, pairs=())
    names = [f"{name}->logits" for name in graph.sources]
    found = torch.tensor([total[name] for name in names], dtype=torch.float64)
    assert (found - own.values).abs().max() < 1e-10
    direct = scored(problem, rules=rules)
    assert direct.values.isfinite().all()
    assert direct.values.abs().max() > 0
    # What comes right before a reader reaches it by one path only.
    for name in ("m1->a2.h0<v>", "a2.h3->m2", "m2->logits"):
        assert abs(total[name] - direct[name]) < 1e-10


@pytest.mark.parametrize("rules", list(rulesets))
def test_exact_edges_into_the_last_mlp_add_up_to_its_local_ones(rules):
    """Pushed by any set, an edge into the last MLP changes the stream by that MLP's loss."""
    problem = tiny_problem("gpt2")
    names = ["input->m2", "a1.h0->m2", "a2.h3->m2", "m1->a2.h0<q>"]
    exact = scored(problem, rules=rules, variant="exact", edges=names)
    assert exact.values.isfinite().all()
    if rules == "removal":
        assert (exact.values - removals(problem, names)).abs().max() < 1e-9


def test_nodes_that_equal_their_ablation_have_no_edges():
    problem = tiny_problem("gpt2")
    same = counterfactual(problem.model, problem.batch.clean, graph_points(problem.model))
    silent = replace(problem, ablation=same)
    for variant in ("local", "exact"):
        assert scored(silent, variant=variant).values.abs().max() < 1e-12


def test_sandwich_norms_have_local_edges_only():
    problem = tiny_problem("gemma2")
    assert scored(problem).values.abs().max() > 0
    with pytest.raises(UnweaveError, match="its edges do not add up"):
        scored(problem, variant="exact")


@pytest.mark.parametrize("variant", ["local", "exact"])
def test_edges_within_the_smallest_budget(variant):
    problem = tiny_problem("llama")
    names = list(graph_of(problem.model).edges[::5])
    call = functools.partial(scored, problem, variant=variant, edges=names)
    with pytest.raises(UnweaveError, match="the smallest possible budget") as caught:
        call(memory=1000)
    least = re.search(r"take (\d+[KM]B)", str(caught.value))
    assert least is not None
    assert (call(memory=least[1]).values - call().values).abs().max() < 1e-10


def test_what_is_refused():
    problem = tiny_problem("gpt2")
    with pytest.raises(UnweaveError, match=r"'a0.h0->a1.h9<q>' is not an edge .*did you mean"):
        scored(problem, edges=["a0.h0->a1.h9<q>"])
    with pytest.raises(UnweaveError, match="paths='total' is defined for variant='local'"):
        scored(problem, variant="exact", paths="total")
    with pytest.raises(UnweaveError, match="edges are defined for decoders"):
        scored(tiny_problem("t5"))
