"""Edge scores against edge-patched runs, against gradients by hand, and within memory."""

import functools
import re
from dataclasses import dataclass, field, replace

import pytest
import torch
from oracles.patched import patched
from oracles.two_stream import _Run, mix, norm, two_stream
from torch import Tensor

from unweave.ablation import counterfactual
from unweave.decomposition.api import relevance
from unweave.decomposition.edges import edge_relevance
from unweave.decomposition.ruleset import rulesets
from unweave.errors import UnweaveError
from unweave.graph import Graph, graph_of, graph_points
from unweave.metrics import MARGIN, PROBABILITY_DIFFERENCE
from unweave.model.algebra import Plain, Scoring, attention_mix, attention_scores, pattern_of
from unweave.model.program import run
from unweave.model.weights import Attention, Mlp, Network, Norm
from unweave.patching.circuits import repeat_inputs
from unweave.patching.edges import EdgePatch, run_edges
from unweave.scores.problem import Problem
from unweave.sites import Point, Site, parse
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


SOME = ["input->m2", "a1.h0->m2", "a0.h2->m1", "input->a1.h2<v>", "m1->a2.h0<v>", "a0.h1->a1.h0<q>"]


@dataclass(eq=False)
class Held(EdgePatch):
    """An edge-patched run with the norm scales and attention patterns of the run before it."""

    scales: list[Tensor] = field(default_factory=list)
    patterns: list[Tensor] = field(default_factory=list)
    recording: bool = True

    def _held(self, x: Tensor, w: Norm) -> Tensor:
        assert w.kind == "layer"
        centred = x - x.mean(-1, keepdim=True)
        if self.recording:
            scale = torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + w.eps)
            self.scales.append(scale.detach())
        else:
            scale = self.scales.pop(0)
        assert w.gain is not None
        assert w.bias is not None
        return centred * scale * w.gain + w.bias

    def _norm(self, x: Tensor, branch: str) -> Tensor:
        return self._held(x, self.pre[branch])

    def norm(self, x: Tensor, w: Norm, place: str) -> Tensor:
        return super().norm(x, w, place) if place.endswith(".pre") else self._held(x, w)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Tensor:
        if self.recording:
            self.patterns.append(pattern_of(attention_scores(q, k), scoring).detach())
            pattern = self.patterns[-1]
        else:
            pattern = self.patterns.pop(0)
        return attention_mix(pattern, v)


def held_metric(problem: Problem, removed: Tensor) -> Tensor:
    """The mean metric without some edges (or parts of edges) where scales and patterns are held."""
    model, batch, graph = problem.model, problem.batch, graph_of(problem.model)
    reads = batch.readout.read[:, None]
    whole = torch.zeros(1, *graph.mask.shape, dtype=torch.float64)
    blocks, base = model.network.body.blocks, problem.ablation
    first = Held(graph, blocks, whole, base, len(batch), reads)
    run(model.network, batch.clean, first)
    kept = {"scales": first.scales, "patterns": first.patterns, "recording": False}
    ops = Held(graph, blocks, removed, base, len(batch), reads, **kept)
    logits = run(model.network, batch.clean, ops)[:, 0]
    assert not ops.scales  # every one was used, in its order
    assert not ops.patterns
    return batch.readout.measure(logits).mean()


def test_exact_scores_of_frozen_are_runs_with_scales_and_patterns_held():
    problem = tiny_problem("gpt2")
    graph = graph_of(problem.model)
    found = scored(problem, rules="frozen", variant="exact", edges=SOME)
    with torch.no_grad():
        whole = held_metric(problem, torch.zeros(1, *graph.mask.shape, dtype=torch.float64))
        without = [held_metric(problem, x[None].double()) for x in removed_one_by_one(graph, SOME)]
    assert abs(whole - problem.metric([problem.nodes]).mean()) < 1e-12
    expected = whole - torch.stack(without)
    assert expected[:-1].abs().min() > 1e-4
    assert expected[-1] == 0  # a pattern that is held has no loss through the query
    assert (found.values - expected).abs().max() < 1e-10


def test_exact_scores_of_linear_are_one_vector_jacobian_product():
    """Of a run with scales and patterns held, in the share of each edge that is left out."""
    problem = tiny_problem("gpt2")
    graph = graph_of(problem.model)
    found = scored(problem, rules="linear", variant="exact")
    shares = torch.zeros(1, *graph.mask.shape, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(held_metric(problem, shares), shares)
    expected = torch.stack([-slope[0][graph.index[name]] for name in found.edges])
    assert expected.abs().max() > 0.01
    assert (found.values - expected).abs().max() < 1e-10


def test_exact_scores_of_paper_are_two_streams_that_begin_at_the_reader():
    problem = tiny_problem("gpt2")
    network, batch = problem.model.network, problem.batch
    found = scored(problem, rules="paper", variant="exact", edges=SOME)
    assert batch.clean.tokens is not None
    expected = torch.zeros(len(SOME), len(batch), dtype=torch.float64)
    for example, tokens in enumerate(batch.clean.tokens):
        totals = {p: b + c for p, (b, c) in two_stream(network, tokens, [], {}).items()}
        for row, name in enumerate(SOME):
            writer, reader = name.replace("input", "embed").split("->")
            site = parse(writer)
            gap = totals[site.point] - problem.ablation.values[site.point][example]
            if site.unit is not None:
                writing = network.body.blocks[site.point.layer].attention
                out = writing.out.matrix.unflatten(1, (writing.heads, -1))[:, site.unit]
                gap = gap[:, site.unit] @ out.T
            target, part = reading(network, totals, gap, reader)
            point, unit = target.point, target.unit
            loss = totals[point] - part if unit is None else totals[point].clone()
            if unit is not None:
                loss[:, unit] = totals[point][:, unit] - part[:, unit]
            rel, _ = two_stream(network, tokens, [target], {point: loss})[Point("logits")]
            logits = rel[batch.readout.read[example]][None]
            one = batch.readout.select(slice(example, example + 1))
            expected[row, example] = one.measure(logits)[0]
    expected = expected.mean(1)
    assert expected[:-1].abs().min() > 1e-4
    assert expected[-1] == 0  # where keys are not relevant, queries say nothing
    assert (found.values - expected).abs().max() < 1e-10


def reading(
    network: Network, totals: dict[Point, Tensor], gap: Tensor, reader: str
) -> tuple[Site, Tensor]:
    """What a reader makes of δ alone, by the slow twin: its output's site, and β there."""
    name, _, branch = reader.partition("<")
    site = parse(name)
    layer, twin = site.point.layer, _Run(network, [], {})
    first, second = network.body.blocks[layer].branches
    if not branch:
        stream = totals[Point("resid", layer + 1)] - totals[site.point]
        assert second.pre is not None
        assert isinstance(second.body, Mlp)
        twin.mlp(norm((gap, stream - gap), second.pre), second.body, layer)
        hidden = Point("neuron", layer)
        return Site(hidden), twin.seen[hidden][0]
    stream = totals[Point("resid", layer)]
    assert first.pre is not None
    relevant = norm((gap, stream - gap), first.pre)
    whole = norm((torch.zeros_like(gap), stream), first.pre)
    w = first.body
    assert isinstance(w, Attention)
    for kind, own in zip("qkv", (w.q, w.k, w.v), strict=True):
        twin.project(relevant if kind == branch[0] else whole, own, w.heads, None, kind, layer)
    q, k, v = (twin.seen[Point(kind, layer)][0] for kind in "qkv")
    if branch[0] != "v":
        v = torch.zeros_like(v)
    return site, mix(q, k, v, w)


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
