"""Each figure of a node against a computation that shares nothing with it."""

import math
from dataclasses import replace

import pytest
import torch
from oracles.closeness import assert_close
from oracles.explained import synthetic, tiny_problem
from oracles.patched import patched
from oracles.tiny import tiny_model

from unweave.errors import UnweaveError
from unweave.graph import graph_of
from unweave.model import program
from unweave.model.algebra import Plain
from unweave.patching.edges import run_edges
from unweave.roles import measure
from unweave.roles.attention import attention_of, random_scores, random_tokens, token_relations
from unweave.roles.feeds import fed_by, input_sites
from unweave.roles.positions import by_token, varies
from unweave.roles.runs import Cost, Runner, ablated
from unweave.roles.shares import share_of
from unweave.roles.writes import copying, rank_score
from unweave.sites import HEAD_KINDS, parse


def without_edges(problem, *edges: str) -> torch.Tensor:
    """What the metric loses without some edges."""
    graph = graph_of(problem.model)
    kept = [set(graph.edges), set(graph.edges) - set(edges)]
    whole, cut = run_edges(problem.model, problem.batch, graph.removed(kept), problem.ablation)
    return whole - cut


def test_effects_are_those_of_ablated_runs(tiny):
    found, _ = measure(tiny, tiny.nodes, budget=1000.0)
    whole = tiny.metric([tiny.nodes])[0]
    lost = whole - tiny.flipped(tiny.nodes, tiny.nodes)
    ours = torch.tensor([found[str(node)].effect.mean for node in tiny.nodes])
    assert_close(ours, lost.mean(1).float())
    assert all(one.prompts == len(tiny.batch) for one in found.values())


def test_effects_at_positions_are_those_of_ablated_runs(tiny):
    # `other` is the rest of the task's own names: those that `measure` adds take nothing from it.
    places = ("end", "third", "other")
    nodes = tuple(node.at(place) for node in tiny.nodes for place in places)
    problem = replace(tiny, nodes=nodes)
    found, _ = measure(problem, nodes, budget=1000.0)
    lost = problem.metric([nodes])[0] - problem.flipped(nodes, nodes)
    ours = torch.tensor([found[str(node)].effect.mean for node in nodes])
    assert_close(ours, lost.mean(1).float())
    runner = Runner(problem.model, problem.batch, Cost(1, 1))
    for node, own in zip(nodes, lost, strict=True):
        _, metric = runner.run(ablated([node], problem.ablation, problem.batch))
        assert metric is not None
        assert torch.allclose(runner.metric - metric, own, atol=1e-9)
        if node.position == "other":
            # The metric is read at the end.
            assert found[str(node)].direct.mean == 0
            assert set(found[str(node)].matters) == {"end", "third", "elsewhere"}
            assert found[str(node)].matters["elsewhere"] == pytest.approx(1)


def test_direct_effects_are_those_of_the_edge_to_the_logits():
    # Edges are defined for gpt2's norms too: removing one recomputes the final norm.
    problem = tiny_problem("gpt2", "four layers")
    found, _ = measure(problem, problem.nodes, budget=1000.0)
    for node in problem.nodes:
        lost = without_edges(problem, f"{node}->logits")
        assert found[str(node)].direct.mean == pytest.approx(float(lost.mean()), abs=1e-9)


def test_shares_are_those_of_patched_runs(tiny):
    model, batch, rows = tiny.model, tiny.batch, torch.arange(len(tiny.batch))
    clean = patched(model.network, batch.clean, [], tiny.ablation.values)
    at = dict.fromkeys(tiny.nodes, batch.positions["end"])
    to = dict.fromkeys(tiny.nodes, batch.positions["third"])
    cost = Cost(1, len(model.network.body.blocks))
    fed = fed_by(tiny, tiny.nodes, at, to, clean, cost)
    source = tiny.nodes[1]
    gone = patched(model.network, batch.clean, [source], tiny.ablation.values)
    checked = 0
    for node in tiny.nodes:
        for branch, site in input_sites(model, node).items():
            label = f"{node}.{branch}" if branch else str(node)
            if source == node or source.point.depth >= site.point.depth:
                assert str(source) not in fed.shares[label]
                continue
            where = to[node] if branch in ("k", "v") else at[node]
            index = (rows, where) if site.unit is None else (rows, where, site.unit)
            total, rest = clean[site.point][index], gone[site.point][index]
            away = total - tiny.ablation.values[site.point][index]
            share = ((total - rest) * away).sum() / away.pow(2).sum()
            assert fed.shares[label][str(source)] == pytest.approx(float(share), abs=1e-8)
            checked += 1
    assert checked > 5


def test_a_run_from_a_layer_on_is_the_whole_run(tiny):
    node = next(node for node in tiny.nodes if node.point.layer == 1)
    runner = Runner(tiny.model, tiny.batch, Cost(1, 4))
    _, metric = runner.run(ablated([node], tiny.ablation, tiny.batch))
    assert_close(metric, tiny.flipped(tiny.nodes, [node])[0])
    assert_close(runner.metric, tiny.metric([tiny.nodes])[0])


def test_the_cost_is_what_runs(monkeypatch):
    """Tokens through blocks, counted as they pass."""
    problem, units = synthetic("wired-suppression"), 0
    block = program.block

    def counting(ops, w, stream, *rest, **named):
        nonlocal units
        x = stream.x
        if isinstance(ops, Plain):
            units += x.shape[0] * x.shape[1] * (3 if x.requires_grad else 1)
        elif getattr(x, "rel", None) is not None:
            units += x.rel.shape[0] * x.rel.shape[1] * x.rel.shape[2]
        return block(ops, w, stream, *rest, **named)

    monkeypatch.setattr(program, "block", counting)
    _, cost = measure(problem, problem.nodes)
    passes = units / (problem.batch.clean.mask.numel() * len(problem.model.network.body.blocks))
    assert cost.passes < 20
    # Gradients are not traced before the first node, nor sources in the block that they enter.
    assert 0.6 * cost.passes < passes < 1.05 * cost.passes


def test_a_small_budget_uses_fewer_prompts_and_is_kept():
    problem = synthetic("wired-inhibition", prompts=48)
    some, cost = measure(problem, problem.nodes, budget=12.0)
    assert next(iter(some.values())).prompts < 48
    assert cost.passes < 12


def jackknife(figure, count: int) -> float:
    """Standard error of a figure from what it is without each prompt: √((n−1)/n Σ (x_i − x̄)²)."""
    every = torch.arange(count)
    left = torch.tensor([figure(every[every != i]) for i in range(count)])
    return float(((left - left.mean()).pow(2).sum() * (count - 1) / count).sqrt())


def test_the_error_of_a_share_is_that_of_leaving_prompts_out():
    draw = torch.Generator().manual_seed(0)
    whole = torch.rand(200, generator=draw) + 0.5
    part = 0.6 * whole + 0.1 * torch.randn(200, generator=draw)
    found = share_of(part, whole)
    assert found.value == pytest.approx(float(part.sum() / whole.sum()))
    slow = jackknife(lambda rows: float(part[rows].sum() / whole[rows].sum()), 200)
    assert found.error == pytest.approx(slow, rel=0.02)
    # The two vary together, so the share is known better than either of its sums.
    assert found.error < 0.5 * float(whole.std() / whole.mean()) / 200**0.5
    assert math.isnan(share_of(part[:1], whole[:1]).error)
    assert math.isnan(share_of(part, torch.zeros(200)).value)


def test_errors_of_attention_are_those_of_leaving_prompts_out():
    problem = synthetic("wired-induction", prompts=40)
    draw, length = torch.Generator().manual_seed(0), problem.batch.clean.mask.shape[1]
    pattern = torch.rand(40, length, length, generator=draw).tril()
    pattern, matters = pattern / pattern.sum(-1, keepdim=True), problem.batch.clean.mask.float()

    def figures(rows):
        return attention_of(problem.model, pattern[rows], matters[rows], problem.batch.select(rows))

    found = figures(torch.arange(40))
    for name in ("itself", "previous", "answer"):
        slow = jackknife(lambda rows, name=name: figures(rows).relations[name], 40)
        assert found.errors[name] == pytest.approx(slow, rel=0.1), name
    slow = jackknife(lambda rows: figures(rows).spread, 40)
    assert found.errors["spread"] == pytest.approx(slow, rel=0.1)


def test_attention_by_distance():
    problem = synthetic("wired-induction", prompts=6)
    length = problem.batch.clean.mask.shape[1]
    # Three back with .7 and one back with .3 of the weight, where both exist; else all at 0.
    pattern = torch.zeros(6, length, length)
    pattern[:, :4, 0] = 1.0
    for query in range(4, length):
        pattern[:, query, query - 3], pattern[:, query, query - 1] = 0.7, 0.3
    matters = torch.zeros(6, length)
    matters[:, 4:] = torch.rand(6, length - 4, generator=torch.Generator().manual_seed(0)) + 0.1
    found = attention_of(problem.model, pattern, matters, problem.batch).offsets
    assert list(found) == [3, 1]
    assert found == pytest.approx({3: 0.7, 1: 0.3}, abs=1e-5)


def test_the_direct_share_compares_prompt_by_prompt_on_those_of_the_effect():
    problem = synthetic("wired-suppression", prompts=48)
    found, _ = measure(problem, problem.nodes, budget=12.0)
    one = found["a2.h0"]
    assert one.prompts < 48
    part, full = problem.select(slice(0, one.prompts)), problem.nodes
    direct = without_edges(part, "a2.h0->logits")
    effect = part.metric([full])[0] - part.flipped(full, [parse("a2.h0")])[0]
    share = float((direct * effect).sum() / effect.pow(2).sum())
    assert one.direct_share == pytest.approx(share, rel=1e-4)
    slow = jackknife(
        lambda rows: float((direct * effect)[rows].sum() / effect[rows].pow(2).sum()), one.prompts
    )
    assert one.error_of("direct_share") == pytest.approx(slow, rel=0.2)
    range_ = (part.metric([full]) - part.metric([()])).mean().abs()
    assert one.direct_size == pytest.approx(float(direct.abs().mean() / range_), rel=1e-4)
    assert one.effect_share == pytest.approx(float(effect.abs().mean() / range_), rel=1e-4)


def test_what_a_head_carries_comes_from_another_position():
    problem = synthetic("wired-composition", "counterfactual")
    found, _ = measure(problem, ["a0.h1", "a1.h0"], budget=1000.0)
    model, batch, rows = problem.model, problem.batch, torch.arange(len(problem.batch))
    values = model.network, batch.clean, [parse("embed@1")], problem.ablation.values
    point = parse("a1.h0.v").point
    clean = patched(model.network, batch.clean, [], problem.ablation.values)[point]
    total, rest = (x[rows, batch.positions["third"], 0] for x in (clean, patched(*values)[point]))
    away = total - problem.ablation.values[point][rows, batch.positions["third"], 0]
    share = float(((total - rest) * away).sum() / away.pow(2).sum())
    assert found["a1.h0"].carried == pytest.approx(share, rel=1e-3)
    assert share > 0.9
    assert found["a0.h1"].carried == pytest.approx(0, abs=1e-3)  # it reads the word where it looks


def test_relations_between_tokens():
    relations = token_relations(torch.tensor([[5, 7, 5, 9]]))
    pairs = {
        name: [tuple(x[1:]) for x in where.nonzero().tolist()] for name, where in relations.items()
    }
    assert pairs["previous"] == [(1, 0), (2, 1), (3, 2)]
    assert pairs["duplicate"] == [(2, 0)]
    assert pairs["induction"] == [(2, 1)]
    assert pairs["itself"] == [(0, 0), (1, 1), (2, 2), (3, 3)]


@pytest.mark.parametrize("kind", ["previous", "duplicate", "induction"])
def test_scores_on_random_tokens_of_a_perfect_pattern(kind):
    inputs = random_tokens(tiny_model("gpt2"))
    relation = token_relations(inputs.tokens)[kind].double()
    pattern = torch.zeros_like(relation)
    pattern[:, :, 0] = 1.0
    pattern = torch.where(relation.any(-1, keepdim=True), relation, pattern)
    found = random_scores(pattern, inputs)
    assert found[kind] == pytest.approx(1.0)
    assert all(value < 0.2 for name, value in found.items() if name != kind)


def test_rank_scores_by_hand():
    logits = torch.tensor([[3.0, 1.0, 2.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    outputs = torch.tensor([10, 11, 12, 13])
    ranks = [rank_score(logits, outputs, torch.tensor([own, 12])) for own in (10, 11, 12, 13)]
    assert [round(float(rank[0]), 3) for rank in ranks] == [1.0, -0.333, 0.333, -1.0]
    assert all(float(rank[1]) == 0.0 for rank in ranks)


def test_copying_changes_sign_with_the_output_matrix():
    problem = synthetic("wired-suppression")
    tokens = problem.batch.clean.tokens
    draw = torch.Generator().manual_seed(0)
    assert tokens is not None
    outputs = tokens.unique()
    weights = torch.ones(tokens.shape)
    # Both heads hold the token as it is in their first dimensions.
    values = torch.nn.functional.one_hot(tokens, 16).float()
    values = values + 0.01 * torch.randn(values.shape, generator=draw)
    found = [
        copying(problem.model, parse(head), values, tokens, weights, outputs).value
        for head in ("a2.h0", "a2.h3", "a1.h2")
    ]
    assert found[0] == pytest.approx(1.0, abs=0.02)
    assert found[1] == pytest.approx(-1.0, abs=0.02)
    assert found[2] == 0.0  # it writes nothing that the unembedding reads


def test_what_an_output_depends_on():
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 5, (40, 6), generator=draw)
    table = torch.randn(5, 3, generator=draw)
    noise = torch.randn(40, 6, 3, generator=draw)
    weights, groups = torch.ones(40, 6), torch.zeros(40, dtype=torch.long)
    assert by_token(table[tokens], weights, tokens) == pytest.approx(1.0, abs=1e-5)
    assert by_token(noise, weights, tokens) == pytest.approx(0.0, abs=0.05)
    fixed = torch.randn(1, 6, 3, generator=draw).expand(40, -1, -1)
    assert varies(fixed, fixed, weights, groups) == pytest.approx(0.0, abs=1e-6)
    # Variance of the table over its mean square, position by position.
    expected = float(table.var(0, unbiased=False).sum() / table.pow(2).sum(1).mean())
    found = varies(table[tokens], table[tokens.flip(0)], weights, groups)
    assert found == pytest.approx(expected, rel=0.1)


def test_nodes_at_one_position(tiny):
    head = next(node for node in tiny.nodes if node.point.kind in HEAD_KINDS)
    positioned = replace(tiny, nodes=tuple(node.at("third") for node in tiny.nodes))
    found, _ = measure(positioned, [head.at("third")], budget=1000.0)
    one = found[f"{head}@third"]
    assert one.matters["third"] == 1.0
    assert one.at == "third"
    gone = tiny.metric([tiny.nodes])[0] - _without(tiny, head.at("third"))
    assert one.effect.mean == pytest.approx(float(gone.mean()), abs=1e-8)
    assert one.direct.mean == 0.0  # nothing is read at that position


def _without(problem, node):
    runs = patched(
        problem.model.network,
        problem.batch.clean,
        [node.at(int(problem.batch.positions[node.position][0]))],
        problem.ablation.values,
    )
    logits = next(x for point, x in runs.items() if point.kind == "logits")
    return problem.batch.readout.measure(logits[:, -1])


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([], "no node to explain"),
        (["a1.h0.q"], "neither a head nor an MLP"),
        (["a9.h0"], "this model has layers"),
    ],
)
def test_bad_nodes(nodes, message):
    with pytest.raises(UnweaveError, match=message):
        measure(synthetic("wired-induction", prompts=4), nodes)


def test_an_architecture_whose_writes_do_not_add_up():
    model = tiny_model("gemma2")
    problem = tiny_problem("gpt2")
    with pytest.raises(UnweaveError, match="score nodes instead"):
        measure(replace(problem, model=model), ["a0.h0"])


def test_missing_points_of_the_ablation_come_from_the_corrupted_prompts():
    problem = synthetic("wired-inhibition", "counterfactual")
    points = set(problem.points)
    kept = {point: x for point, x in problem.ablation.values.items() if point in points}
    bare = replace(problem, ablation=replace(problem.ablation, values=kept))
    whole, part = (measure(one, ["a0.h0", "a1.h1"])[0] for one in (problem, bare))
    assert part["a1.h1"].feeds["k"]["a0.h0"] == pytest.approx(
        whole["a1.h1"].feeds["k"]["a0.h0"], abs=0.05
    )
    assert part["a1.h1"].effect == whole["a1.h1"].effect
    assert not math.isnan(part["a1.h1"].moved["k"].output)
