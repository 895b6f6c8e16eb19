"""Paths against explicit products of Jacobians, wired models, and runs in which a path is cut."""

from dataclasses import dataclass, replace

import pytest
import torch
from oracles.brute_paths import Brute, kept
from torch import Tensor

from unweave.ablation import ZERO
from unweave.ablations.kind import task_ablation
from unweave.behaviours.file import find_task
from unweave.decomposition.paths import ELSEWHERE, find_paths, observe_paths
from unweave.experiments.paths import paths_record, read_step
from unweave.graph import graph_of, graph_points
from unweave.model.algebra import Plain, normalise
from unweave.model.loading import load
from unweave.model.program import run
from unweave.model.weights import Linear, Norm
from unweave.patching.edges import run_edges
from unweave.patching.paths import CutPath, run_cut_paths
from unweave.scores.problem import Problem
from unweave.sites import Point, parse
from unweave.testing.problem import paired_ablation, tiny_problem


def attention_only(layers: int, rows: int = 1, zero: bool = False) -> Problem:
    """A tiny GPT-2 in float64, its MLPs taken out."""
    problem = tiny_problem("gpt2", layers=layers, rows=rows)
    body = problem.model.network.body
    blocks = tuple(replace(block, branches=block.branches[:1]) for block in body.blocks)
    network = replace(problem.model.network, body=replace(body, blocks=blocks))
    model = replace(problem.model, network=network)
    nodes = tuple(model.heads())
    ablation = ZERO if zero else paired_ablation(model, problem.batch, nodes)
    return replace(problem, model=model, nodes=nodes, ablation=ablation)


def everything(problem: Problem):
    return find_paths(
        problem.model, problem.batch, problem.ablation, expansions=10**6, least=0.0, steps=32
    )


def test_every_path_is_a_product_of_mean_jacobians_and_all_add_up():
    problem = attention_only(2)
    found, brute = everything(problem), Brute(problem)
    expected, values = brute.values(), {}
    for path in found.found:  # tokens of one path together
        steps = (read_step(path.steps[0])[0], *path.steps[1:])
        values[steps] = values.get(steps, 0.0) + path.value
    assert len([p for p in expected if p[0] == "input"]) == 1 + 2 * 4 * 3 + 4 * 3 * 4 * 3
    assert max(map(abs, expected.values())) > 0.01
    for steps in {*expected, *values}:
        assert values.get(steps, 0.0) == pytest.approx(expected.get(steps, 0.0), abs=1e-9)
    x, ablated = brute.ends(2)
    total = float(brute.metric(x) - brute.metric(ablated))
    assert float(found.total) == pytest.approx(total, abs=1e-12)
    assert sum(values.values()) == pytest.approx(total, abs=1e-9)
    assert abs(found.left()) < 1e-8
    assert found.expanded == 4 + 4 + 4 * 3 * 4


def test_what_the_integrals_miss_is_told():
    """Norms change fast where zero ablation leaves next to nothing of the stream."""
    problem = attention_only(2, zero=True)
    model, batch = problem.model, problem.batch
    coarse, fine = (
        find_paths(model, batch, ZERO, expansions=10**6, least=0.0, steps=steps)
        for steps in (8, 64)
    )
    told = [x.error / abs(float(x.total)) for x in (coarse, fine)]
    assert told[1] < 0.01 < told[0]
    for found, bound in zip((coarse, fine), told, strict=True):
        assert abs(found.left()) <= bound
    assert any(path.steps[0].startswith("a") for path in fine.found)  # a part of its own


def test_with_counterfactual_prompts_paths_add_up_to_the_difference_of_two_plain_runs():
    problem = attention_only(2)
    model, batch = problem.model, problem.batch
    logits = [run(model.network, x, Plain()) for x in (batch.clean, batch.corrupted)]
    clean, corrupted = (batch.readout.measure(x[[0], batch.readout.read]) for x in logits)
    found = everything(problem)
    assert sum(path.value for path in found.found) == pytest.approx(
        float(clean - corrupted), abs=1e-9
    )
    assert all(path.steps[0].startswith("input@") for path in found.found)


@pytest.mark.parametrize(
    "shape", [("llama", None), ("qwen3", None), ("gpt_neox", "parallel"), ("bloom", None)], ids=str
)
def test_a_part_alone_writes_what_it_writes_in_the_model(shape):
    problem = tiny_problem(*shape, rows=2)
    observed = observe_paths(problem.model, problem.batch, ZERO)  # δ is the whole write
    clean = kept(problem.model, problem.batch.clean)
    for number, name in enumerate(observed.graph.sources[1:], 1):
        part, key, branches = observed.part(name)
        alone = part(dict.fromkeys(branches, observed.read[key]))
        assert (alone - observed.delta[number]).abs().max() < 1e-10
    final = clean[Point("resid", len(problem.model.network.body.blocks))]
    assert (observed.delta.sum(0) - final).abs().max() < 10  # biases belong to no node
    assert torch.equal(observed.read[len(problem.model.network.body.blocks), "logits"], final)


@dataclass(eq=False)
class _Corrected(Plain):
    """A plain run in which one input of one head reads the stream less a change."""

    layer: int
    unit: int
    branch: str
    change: Tensor
    now: int = 0
    read: tuple[Tensor, Norm] | None = None
    z: Tensor | None = None

    def norm(self, x: Tensor, w: Norm, place: str) -> Tensor:
        self.read = (x, w)
        return super().norm(x, w, place)

    def linear(self, x: Tensor, w: Linear, place: str) -> Tensor:
        y = super().linear(x, w, place)
        if place == f"attention.{self.branch}" and self.now == self.layer:
            assert self.read is not None
            stream, norm = self.read
            other = super().linear(normalise(stream - self.change, norm), w, place)
            width = y.shape[-1] // 4
            own = slice(self.unit * width, (self.unit + 1) * width)
            y = torch.cat((y[..., : own.start], other[..., own], y[..., own.stop :]), -1)
        return y

    def at(self, x: Tensor, point: Point) -> Tensor:
        if point.kind == "resid":
            self.now = point.layer
        if point == Point("z", self.layer):
            self.z = x
        return x


def by_whole_runs(problem: Problem, path: CutPath) -> Tensor:
    """m(M) − m(M without the path), one whole run for every reader on its way."""
    model, batch = problem.model, problem.batch
    clean, change = kept(model, batch.clean), path.change
    for site, branch in path.hops:
        ops = _Corrected(site.point.layer, site.unit, branch, change)
        run(model.network, batch.clean, ops)
        assert ops.z is not None
        out = model.network.body.blocks[site.point.layer].attention.out.matrix
        lost = (clean[site.point] - ops.z)[:, :, site.unit]
        change = lost @ out.unflatten(1, (4, -1))[:, site.unit].T
    final = clean[Point("resid", len(model.network.body.blocks))]
    norm, (step,) = model.network.body.norm, model.network.head.steps
    rows = torch.arange(len(batch))

    def metric(stream: Tensor) -> Tensor:
        logits = Plain().linear(normalise(stream, norm), step, "head")
        return batch.readout.measure(logits[rows, batch.readout.read])

    return metric(final) - metric(final - change)


def test_a_path_that_is_cut_equals_whole_runs_of_each_reader():
    problem = attention_only(3, rows=2)
    observed = observe_paths(problem.model, problem.batch, problem.ablation)
    sources = observed.graph.sources
    heads = [parse(name) for name in ("a0.h1", "a1.h0", "a2.h3")]
    paths = [
        CutPath(observed.delta[sources.index("a0.h1")], []),
        CutPath(observed.delta[0], [(heads[0], "v"), (heads[2], "k")]),
        CutPath(observed.delta[sources.index("a0.h1")], [(heads[1], "k"), (heads[2], "q")]),
    ]
    found = run_cut_paths(problem.model, problem.batch, observed.read, paths)
    expected = torch.stack([by_whole_runs(problem, path) for path in paths])
    assert expected.abs().min() > 1e-6
    assert (found - expected).abs().max() < 1e-10


def test_a_path_into_the_last_layer_equals_the_removal_of_its_edge():
    problem = attention_only(2, rows=2)
    model, batch, graph = problem.model, problem.batch, graph_of(problem.model)
    observed = observe_paths(model, batch, problem.ablation)
    removed = torch.zeros(2, *graph.mask.shape, dtype=torch.bool)
    removed[1][graph.index["a0.h2->a1.h1<k>"]] = True
    whole, without = run_edges(model, batch, removed, problem.ablation)
    path = CutPath(observed.delta[graph.sources.index("a0.h2")], [(parse("a1.h1"), "k")])
    (found,) = run_cut_paths(model, batch, observed.read, [path])
    assert (found - (whole - without)).abs().max() < 1e-10


def wired(name: str, ablation: str = "mean", prompts: int = 16) -> Problem:
    model, task = load(name), find_task(name)
    batch = task.batch(model, prompts, part="evaluate")
    built = task_ablation(task, model, batch, ablation, graph_points(model))
    return Problem(model, batch, tuple(model.heads()), built)


def test_the_relay_is_three_paths_of_a_third_the_longest_chain_first():
    record = paths_record(wired("wired-relay"))
    chain = ["a0.h1<v>", "a1.h2<v>", "a2.h0<v>", "logits"]
    told = [one["path"][1:] for one in record["paths"][:3]]
    assert told == [chain, chain[1:], chain[2:]]
    for one in record["paths"][:3]:
        assert one["share"] == pytest.approx(1 / 3, abs=0.01)
        # A path of values alone is linear: cutting it loses what it carries.
        assert one["measured"] == pytest.approx(one["share"], abs=0.005)
    assert len(record["paths"]) == 3
    assert abs(record["left"]) < 0.01


# The value of a0.h0 is the same for every word, so no prompt has a path through it.
WIRED = {
    "wired-inhibition": {
        ("a2.h2<v>",),
        ("a2.h2<k>",),
        ("a1.h1<v>", "a2.h2<q>"),
        ("a0.h0<q>", "a1.h1<k>", "a2.h2<q>"),
        ("a0.h0<k>", "a1.h1<k>", "a2.h2<q>"),
    },
    "wired-induction": {("a2.h0<v>",), ("a2.h0<q>",), ("a1.h2<v>", "a2.h0<k>")},
}


@pytest.mark.parametrize("name", WIRED)
def test_wired_paths_come_first_with_their_inputs_and_no_others(name):
    record = paths_record(wired(name))
    shares = {tuple(one["path"][1:-1]): one for one in record["paths"]}
    first = [tuple(one["path"][1:-1]) for one in record["paths"][: len(WIRED[name])]]
    assert set(first) == WIRED[name]
    others = [one["share"] for steps, one in shares.items() if steps not in WIRED[name]]
    assert max(map(abs, others), default=0.0) < 0.01 < min(shares[s]["share"] for s in first)
    # Without any of them the answer is lost, by a third at least.
    assert min(shares[steps]["measured"] for steps in first) > 0.3
    assert abs(record["left"]) < 0.01
    assert record["error"] < 1e-4


def test_tokens_of_a_path_are_told_apart_by_label():
    problem = attention_only(2, rows=2)
    found = find_paths(problem.model, problem.batch, problem.ablation, expansions=8, least=0.0)
    starts = {path.steps[0] for path in found.found}
    assert starts == {"input@end", "input@start", f"input@{ELSEWHERE}"}
    one = {p.steps[0]: p.values for p in found.found if p.steps[1:] == ("a1.h0<v>", "logits")}
    observed = observe_paths(problem.model, problem.batch, problem.ablation)
    whole = torch.stack(list(observed.position_masks.values())).sum(0)
    assert torch.equal(whole, problem.batch.clean.mask.double())
    assert len(one) == 3
