"""Costs as `unweave.cost` counts them, against counts by hand."""

import pytest

from unweave.cost import metered
from unweave.experiments.phases import forward_tokens
from unweave.scores.problem import Problem
from unweave.scores.score import scores as registered
from unweave.testing.problem import LENGTH, tiny_problem


@pytest.fixture(scope="module")
def problem() -> Problem:
    return tiny_problem("gpt2")


def passes(problem: Problem, call) -> float:
    with metered() as meter:
        call()
    return meter.tokens / forward_tokens(problem.model, problem.batch)


def test_a_forward_pass_is_its_tokens_in_every_block(problem):
    blocks = len(problem.model.network.body.blocks)
    assert forward_tokens(problem.model, problem.batch) == blocks * len(problem.batch) * LENGTH
    assert passes(problem, lambda: problem.model.logits(problem.batch.clean.tokens)) == 1


def test_circuits_cost_one_pass_each(problem):
    assert passes(problem, lambda: problem.metric([problem.nodes, (), problem.nodes[:3]])) == 3


def test_an_encoder_counts_too():
    problem = tiny_problem("t5")
    assert passes(problem, lambda: problem.metric([problem.nodes])) == 1


def test_a_backward_pass_counts_twice(problem):
    """EAP: one forward, one backward. EAP-IG: as many of both as it has steps."""
    assert passes(problem, lambda: registered["eap"].run(problem)) == 3
    assert passes(problem, lambda: registered["relp"].run(problem)) == 3
    steps = passes(problem, lambda: registered["eap-ig"].run(problem, {"steps": 4}))
    assert steps == pytest.approx(12)


def test_flips_start_at_their_layer(problem):
    """A node of the last of n blocks costs 1/n of a pass, beside the circuit's own run up to it."""
    blocks = len(problem.model.network.body.blocks)
    last = [node for node in problem.nodes if node.point.layer == blocks - 1]
    first = [node for node in problem.nodes if node.point.layer == 0]
    assert passes(problem, lambda: problem.flipped(problem.nodes, last)) == pytest.approx(
        (blocks - 1) / blocks + len(last) / blocks
    )
    assert passes(problem, lambda: problem.flipped(problem.nodes, first)) == pytest.approx(
        len(first)
    )


def test_past_the_last_kept_head_only_what_is_read_is_run(problem):
    heads = Problem(problem.model, problem.batch, tuple(problem.model.heads()), problem.ablation)
    blocks = len(problem.model.network.body.blocks)
    assert passes(heads, lambda: heads.metric([()])) == pytest.approx(1 / LENGTH)
    assert passes(heads, lambda: heads.metric([heads.nodes[:1], ()])) == pytest.approx(
        2 * (1 + (blocks - 1) / LENGTH) / blocks
    )


@pytest.mark.parametrize("rows", [1, 3])
def test_a_sweep_costs_about_half_a_pass_a_node(problem, rows):
    """A node's part passes the blocks after its own; the totals are one pass, and one prompt is
    run plainly to check them."""
    part, blocks = problem.select(slice(0, rows)), len(problem.model.network.body.blocks)
    options = {"rules": "removal", "prompts": 1000}
    found = passes(part, lambda: registered["decomposition"].run(part, options))
    after = sum(blocks - 1 - node.point.layer for node in problem.nodes) / blocks
    assert found == pytest.approx(1 + after + 1 / rows)


def test_a_third_of_the_prompts_costs_a_third(problem):
    part = problem.select(slice(0, 1))
    whole = passes(part, lambda: registered["decomposition"].run(part, {"prompts": 1000}))
    third = passes(problem, lambda: registered["decomposition"].run(problem, {"prompts": 1}))
    assert third == pytest.approx(whole / 3)


def test_meters_nest(problem):
    with metered() as outer:
        problem.metric([problem.nodes])
        with metered() as inner:
            problem.metric([problem.nodes])
    problem.metric([problem.nodes])
    assert outer.tokens == 2 * inner.tokens == 2 * forward_tokens(problem.model, problem.batch)
