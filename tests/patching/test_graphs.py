"""Captured runs: the same numbers as eager ones, whatever changes between two replays.

There is no GPU here: a stand-in computes again from the captured inputs, as a replay would. On a
GPU the same tests use CUDA graphs.
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from oracles.closeness import assert_close
from torch import Tensor

from unweave.cost import metered, metered_apart
from unweave.patching import graphs
from unweave.patching.circuits import run_circuits
from unweave.patching.flips import _joined, run_flips
from unweave.patching.graphs import GraphMemory, TensorFunction, capturing
from unweave.scores.gradients import metric_gradients
from unweave.scores.problem import Problem
from unweave.scores.score import scores
from unweave.search.search import searches
from unweave.testing.problem import tiny_problem

HOW = ["stand-in", "cuda"]


class Again:
    """A captured run that is computed anew, in the memory of its first result."""

    def __init__(self, run: TensorFunction, inputs: Sequence[Tensor], memory: GraphMemory) -> None:
        self.run, self.inputs, self.replays = run, inputs, 0
        self.result = tuple(torch.full_like(x, torch.nan) for x in run(inputs))
        made.append(self)

    def __call__(self) -> None:
        self.replays += 1
        with metered_apart():  # a graph runs no code of ours
            results = self.run(self.inputs)
        for to, x in zip(self.result, results, strict=True):
            to.copy_(x)


made: list[Again] = []


@pytest.fixture(params=HOW)
def captured(request: pytest.FixtureRequest):
    """How runs are captured, and where."""
    made.clear()
    if request.param == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("needs a GPU")
        yield True, "cuda"
    else:
        yield Again, "cpu"
        assert made, "nothing was captured: the test compares eager runs with themselves"


def problem_on(device: str, **more) -> Problem:
    problem = tiny_problem("llama", "grouped heads", dtype=torch.float32, **more)
    if device == "cpu":
        return problem
    return moved(problem, device)


def moved(x, device):
    """A record with its tensors on another device."""
    flat: list[Tensor] = []
    graphs._shape(x, flat)
    return graphs._rebuilt(x, iter([tensor.to(device) for tensor in flat]))


def metric(problem: Problem, circuits) -> Tensor:
    return run_circuits(problem.model, problem.batch, circuits, problem.points, problem.ablation)


def some_circuits(problem: Problem, count: int, seed: int) -> list[tuple]:
    draw = torch.Generator().manual_seed(seed)
    picks = torch.rand(count, len(problem.nodes), generator=draw) < 0.5
    return [tuple(n for n, on in zip(problem.nodes, row, strict=True) if on) for row in picks]


def test_replays_equal_eager_runs_with_other_circuits_prompts_and_ablations(captured) -> None:
    how, device = captured
    problem = problem_on(device)
    order = torch.tensor([2, 0, 1], device=device)
    other = replace(
        problem,
        batch=problem.batch.select(order),
        ablation=replace(
            problem.ablation, values={p: 2 * v for p, v in problem.ablation.values.items()}
        ),
    )
    with capturing(how):
        for seed in range(3):
            for one in (problem, other):
                circuits = some_circuits(one, 3, seed)
                found = metric(one, circuits)
                with capturing(False):
                    assert_close(found, metric(one, circuits))
    if made:
        assert [graph.replays for graph in made] == [5], "one graph serves all of them"


def test_a_result_stays_when_the_graph_runs_again(captured) -> None:
    how, device = captured
    problem = problem_on(device)
    with capturing(how):
        metric(problem, [()])
        first = metric(problem, [problem.nodes])
        kept = first.clone()
        metric(problem, [()])
    assert torch.equal(first, kept)


def test_flips_and_gradients_of_captured_runs(captured) -> None:
    how, device = captured
    problem = problem_on(device)
    args = (problem.model, problem.batch, problem.nodes[::2], problem.nodes[1:5])
    args = (*args, problem.points, problem.ablation)
    for _ in range(3):
        with capturing(how):
            fast = run_flips(*args)
            gradients, values, measured = metric_gradients(
                problem.model, problem.batch, problem.points, None, problem.ablation
            )
        with capturing(False):
            assert_close(fast, run_flips(*args))
            plain = metric_gradients(
                problem.model, problem.batch, problem.points, None, problem.ablation
            )
        assert gradients.keys() == plain[0].keys() == set(problem.points)
        for point in problem.points:
            assert_close(gradients[point], plain[0][point])
            assert_close(values[point], plain[1][point])
        assert_close(measured, plain[2])


@pytest.mark.parametrize("search", list(searches))
def test_every_search_finds_the_same_circuit(captured, search) -> None:
    how, device = captured
    problem = problem_on(device, rows=4)
    found, options = scores["eap"].run(problem), {}
    if "rounds" in searches[search].options:
        options["rounds"] = 1
    with capturing(False):
        eager = searches[search].run(problem, found, options)
    with capturing(how):
        fast = searches[search].run(problem, found, options)
        if not made:  # a run is captured when it is met again, and some searches meet none twice
            fast = searches[search].run(problem, found, options)
    assert fast.circuit == eager.circuit
    for one, other in zip(fast.rounds, eager.rounds, strict=True):
        assert [step.removed for step in one.steps] == [step.removed for step in other.steps]


def test_a_replay_costs_what_its_circuits_cost(captured) -> None:
    how, device = captured
    problem = problem_on(device)
    for _ in range(3):
        for count in (1, 3):
            circuits = some_circuits(problem, count, 0)
            with capturing(how), metered() as fast:
                metric(problem, circuits)
            with capturing(False), metered() as eager:
                metric(problem, circuits)
            assert fast.tokens == pytest.approx(eager.tokens)


def test_after_one_failed_capture_all_runs_are_eager(monkeypatch) -> None:
    tried = []
    monkeypatch.setattr(graphs, "_failed", [])

    def fails(run: TensorFunction, inputs: Sequence[Tensor], memory: GraphMemory):
        tried.append(inputs)
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    problem = problem_on("cpu")
    circuits = [problem.nodes[::2]]
    expected = metric(problem, circuits)
    with capturing(fails):
        metric(problem, circuits)
        with pytest.warns(UserWarning, match="not permitted when stream is capturing"):
            found = metric(problem, circuits)
        assert_close(found, expected)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # told once
            for count in (1, 2, 2):
                metric(problem, some_circuits(problem, count, 0))
        assert_close(metric(problem, circuits), expected)
    assert len(tried) == 1


def test_the_graph_that_was_not_used_for_longest_goes(monkeypatch) -> None:
    monkeypatch.setattr(graphs, "_MOST", 2)
    problem = problem_on("cpu")
    with capturing(Again):
        for count in (1, 2, 4, 8):
            for _ in range(2):
                metric(problem, some_circuits(problem, count, 0))
    assert len(graphs._met[problem.model.network].graphs) == 2


def test_few_graphs_serve_every_number() -> None:
    assert [graphs.room(n) for n in range(1, 10)] == [1, 2, 3, 4, 6, 6, 8, 8, 12]


def test_few_nodes_of_a_layer_join_those_of_an_earlier_one() -> None:
    by_stage = {5: [0, 1], 2: [2], 3: [3, 4, 5], 9: [6]}
    assert _joined(by_stage, 1) == [(2, [2]), (3, [3, 4, 5]), (5, [0, 1]), (9, [6])]
    assert _joined(by_stage, 3) == [(2, [2, 3, 4, 5]), (5, [0, 1, 6])]
