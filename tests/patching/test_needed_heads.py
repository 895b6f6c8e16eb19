"""Heads that no circuit keeps are not computed: the same numbers as when all of them are."""

from collections.abc import Sequence

import pytest
import torch
from oracles.circuit_runs import plain_metric
from oracles.closeness import assert_close
from oracles.tiny import VARIANTS, outputs_of, tiny_model
from torch import Tensor

from unweave.model.algebra import Plain
from unweave.patching.circuits import Patch, keep_masks, run_circuits
from unweave.patching.flips import run_flips
from unweave.scores.gradients import Tap, metric_gradients
from unweave.scores.problem import Problem
from unweave.search.descent import estimated_effects
from unweave.sites import Point, Site
from unweave.testing.problem import tiny_problem

WITH_OUTPUT = [case for case in VARIANTS if outputs_of(tiny_model(*case)) > 1]


def every_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on all heads are computed."""
    for kind in (Patch, Tap):
        monkeypatch.setattr(kind, "needed_heads", Plain.needed_heads)


def drawn(problem: Problem, share: float, seed: int) -> tuple[Site, ...]:
    draw = torch.Generator().manual_seed(seed)
    picks = torch.rand(len(problem.nodes), generator=draw) < share
    return tuple(n for n, on in zip(problem.nodes, picks.tolist(), strict=True) if on)


def batches(problem: Problem) -> list[list[tuple[Site, ...]]]:
    """Circuits that run together: none, few and most nodes, at all positions and at some."""
    some = [drawn(problem, 0.25, seed) for seed in range(4)]
    at_end = tuple(node.at("end") for node in some[0])
    first = [n for n in problem.nodes if n.point.kind == "z" and n.point.layer == 0]
    return [
        [()],
        [(), problem.nodes[:1]],
        [tuple(first[:1]), tuple(first[-1:])],
        some,
        [at_end, some[1]],
        [drawn(problem, 0.8, 0)],
    ]


def metric(problem: Problem, circuits: Sequence[Sequence[Site]]) -> Tensor:
    return run_circuits(problem.model, problem.batch, circuits, problem.points, problem.ablation)


@pytest.mark.parametrize(("family", "variant"), WITH_OUTPUT)
@pytest.mark.parametrize("ablation", ["counterfactual", "zero"])
def test_circuits_and_flips_of_every_family(family, variant, ablation, monkeypatch):
    problem = tiny_problem(family, variant, ablation=ablation)

    def values() -> list[Tensor]:
        args = (problem.model, problem.batch, problem.nodes[:1], problem.nodes)
        flipped = run_flips(*args, problem.points, problem.ablation)
        return [*(metric(problem, circuits) for circuits in batches(problem)), flipped]

    found = values()
    every_head(monkeypatch)
    for one, full in zip(found, values(), strict=True):
        assert_close(one, full)


@pytest.mark.parametrize(
    ("family", "variant"),
    [("llama", "grouped heads"), ("gemma2", None), ("gpt2", None), ("gptj", None), ("t5", None)],
)
def test_circuits_against_plain_runs(family, variant):
    problem = tiny_problem(family, variant)
    for circuits in batches(problem)[:4]:
        for circuit, found in zip(circuits, metric(problem, circuits), strict=True):
            removed = [node for node in problem.nodes if node not in set(circuit)]
            assert_close(found, plain_metric(problem, removed))


def test_means_that_prompts_share(monkeypatch):
    """Rows of one ablation are written once, whatever order the prompts take them in."""
    problem = tiny_problem("llama", "grouped heads")
    object.__setattr__(problem.ablation, "rows", torch.tensor([2, 0, 2]))
    found = [metric(problem, circuits) for circuits in batches(problem)]
    every_head(monkeypatch)
    for one, circuits in zip(found, batches(problem), strict=True):
        assert_close(one, metric(problem, circuits))


def test_queries_and_keys_as_nodes_need_every_head(monkeypatch):
    model = tiny_model("llama", "grouped heads")
    nodes = [*model.heads(), *(Site(Point(k, 1), 0) for k in ("q", "k", "v"))]
    problem = tiny_problem("llama", "grouped heads", nodes=nodes)
    circuits = [nodes[-1:], [nodes[0], nodes[-2]]]
    found = metric(problem, circuits)
    every_head(monkeypatch)
    assert_close(found, metric(problem, circuits))


@pytest.mark.parametrize("kept", [[0], [0, 1], [0, 2], [1, 2, 3], [3]])
def test_only_those_heads_are_computed(kept, monkeypatch):
    problem = tiny_problem("llama", "grouped heads")
    heads = problem.model.network.body.blocks[1].attention.heads
    seen = []

    def attend(self, q, k, v, scoring):
        seen.append(q.shape[-2])
        return Plain.attend(self, q, k, v, scoring)

    monkeypatch.setattr(Patch, "attend", attend, raising=False)
    metric(problem, [[Site(Point("z", 1), head) for head in kept]])
    assert seen == [len(kept) if 2 * len(kept) <= heads else heads]


def test_one_head_alone_has_its_own_numbers():
    """Heads whose groups differ in size have a key each; the others share theirs."""
    w = tiny_model("llama", "grouped heads").network.body.blocks[0].attention
    assert w.kv_heads < w.heads
    group = w.heads // w.kv_heads
    for heads in ([0], [1, group], list(range(group + 1))):
        some = w.only(heads)
        each = w.k.matrix.unflatten(0, (w.kv_heads, -1))
        own = some.k.matrix.unflatten(0, (some.kv_heads, -1))
        for i, head in enumerate(heads):
            assert_close(own[i // (len(heads) // some.kv_heads)], each[head // group])
            columns = w.out.matrix.unflatten(1, (w.heads, -1))[:, head]
            assert_close(some.out.matrix.unflatten(1, (len(heads), -1))[:, i], columns)


@pytest.mark.parametrize(
    ("family", "variant"), [("llama", "grouped heads"), ("gemma2", None), ("gptj", None)]
)
@pytest.mark.parametrize("where", [None, "end"])
def test_gradients_of_kept_nodes(family, variant, where, monkeypatch):
    """What the circuit's own nodes add, from the heads that it keeps; and what all would add."""
    whole = tiny_problem(family, variant)
    problem = tiny_problem(family, variant, nodes=[node.at(where) for node in whole.nodes])
    circuits = [problem.nodes[:1], problem.nodes[-2:], drawn(problem, 0.3, 1), problem.nodes]

    def effects() -> list[Tensor]:
        own = [torch.cat([a[None], b]) for c in circuits for a, b in [_effects(problem, c, c)]]
        rest = [_effects(problem, c, problem.nodes)[1] for c in circuits]
        return [*own, *rest]

    found = effects()
    every_head(monkeypatch)
    for one, full in zip(found, effects(), strict=True):
        assert_close(one, full)
    for circuit, own in zip(circuits, found, strict=False):
        index = [problem.nodes.index(node) for node in circuit]
        assert_close(own[1:], _effects(problem, circuit, problem.nodes)[1][index])


def test_effects_of_no_nodes_are_none():
    problem = tiny_problem("gpt2")
    value, adds = _effects(problem, problem.nodes, ())
    assert_close(value, metric(problem, [problem.nodes])[0])
    assert adds.shape == (0, len(problem.batch))


def _effects(problem: Problem, circuit: Sequence[Site], nodes: Sequence[Site]):
    return estimated_effects(problem, tuple(circuit), nodes)


def test_gradients_at_replaced_heads_are_those_of_what_replaces_them():
    problem = tiny_problem("gpt2")
    keep = keep_masks([problem.nodes[:1]], problem.points, problem.model, problem.batch)
    args = (problem.model, problem.batch, problem.points, keep, problem.ablation)
    gradients, _, value = metric_gradients(*args)
    point, step = Point("z", 2), 1e-6
    moved = dict(problem.ablation.values)
    direction = torch.randn(moved[point].shape, generator=torch.Generator().manual_seed(0)).double()
    moved[point] = moved[point] + step * direction
    object.__setattr__(problem.ablation, "values", moved)
    slope = (metric(problem, [problem.nodes[:1]])[0] - value) / step
    read = problem.batch.readout.read
    full = gradients[point]
    assert full.shape == direction.shape, f"read at {read}"
    torch.testing.assert_close((full * direction).flatten(1).sum(1), slope, rtol=1e-4, atol=1e-6)
