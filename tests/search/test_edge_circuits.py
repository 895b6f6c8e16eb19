"""Circuits of edges: every known edge is found and none else; states, costs and figures hold."""

import gc
import itertools
import json
import weakref
from dataclasses import replace

import pytest
import torch
from oracles.edge_runs import plain_edge_metric

from unweave.ablations.kind import ablations
from unweave.behaviours.synthetic.known_edges import IDLE, known_edges
from unweave.behaviours.task import synthetic_tasks
from unweave.circuits import EdgeScores
from unweave.cost import metered
from unweave.errors import UnweaveError
from unweave.estimates import Estimate
from unweave.experiments.discover import discover
from unweave.experiments.edge_experiment import EdgeExperiment
from unweave.experiments.phases import forward_tokens
from unweave.experiments.specification import Experiment, Specification
from unweave.graph import graph_of
from unweave.model.algebra import Plain
from unweave.model.loading import load
from unweave.model.synthetic import tracr_programs
from unweave.patching import edges
from unweave.patching.edges import patched_metric
from unweave.patching.gaps import Gaps
from unweave.scores.edge_problem import EdgeProblem
from unweave.scores.score import scores
from unweave.search import edge_eliminate
from unweave.search.edge_descent import EdgeDescent, EdgeState
from unweave.search.loss import Loss
from unweave.search.prompts import Checked, SearchPrompts
from unweave.search.search import NoCheckpoint, Step, searches
from unweave.search.settings import SEARCH
from unweave.testing.problem import tiny_problem
from unweave.testing.search import Recorder

needs_tracr = pytest.mark.skipif(
    not tracr_programs.available(), reason='tracr is not installed: pip install "unweave[tracr]"'
)
NAMES = [
    pytest.param(name, marks=needs_tracr) if name.startswith("tracr:") else name
    for name in synthetic_tasks
]


@pytest.fixture(scope="module")
def problem() -> EdgeProblem:
    found = tiny_problem("gpt2")
    return EdgeProblem.of(found.model, found.batch, found.ablation)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ablation", list(ablations))
def test_every_known_edge_is_found_and_none_else(name, ablation):
    """By the whole of discover under mean ablation, by its two searches under the others."""
    model = load(name)
    how = Specification(name, name, ablation=ablation, prompts=16, held_out=16, level="edge")
    edges = EdgeExperiment(Experiment.set_up(how, model))
    if ablation == "mean":
        circuit = discover(model, name, how)
        found, faithful = [edge.name for edge in circuit.edges], circuit.faithfulness
    else:
        method, problem = how.resolved, edges.experiment.discovery
        search, rate = searches[method.search], scores[method.score]
        nodes = search.run(problem, rate.run(problem), search.before_edges).circuit
        rated = rate.run_edges(edges.scored)
        found = search.run_edges(edges.discovery, rated, edges.joined(nodes)).circuit
        faithful = float(edges.discovery.faithfulness([found])[0])
    assert {*found} == {*known_edges(edges.experiment.task, name, ablation)}
    assert faithful == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(
    ("name", "ablation"), [pytest.param(*key, marks=needs_tracr) for key in IDLE]
)
def test_idle_edges_decide_nothing_in_the_whole_model(name, ablation):
    how = Specification(name, name, ablation=ablation, prompts=16, level="edge")
    problem = EdgeExperiment(Experiment.set_up(how, load(name))).discovery
    without = problem.flipped(problem.nodes, IDLE[name, ablation])
    assert (without - problem.reference.full).abs().max() == 0.0


@pytest.mark.parametrize("family", [("gpt2", None), ("llama", None), ("gpt_neox", "parallel")])
def test_sparse_runs_equal_plain_ones(family):
    """Circuits of few nodes, whose other nodes are replaced where they write."""
    nodes = tiny_problem(*family)
    graph = graph_of(nodes.model)
    for seed in range(3):
        draw = torch.Generator().manual_seed(seed)
        some = [str(nodes.nodes[i]) for i in torch.randperm(len(nodes.nodes), generator=draw)[:3]]
        inside = graph.among(some)
        chosen = [inside[i] for i in torch.randperm(len(inside), generator=draw)[:6]]
        own = EdgeProblem.of(nodes.model, nodes.batch, nodes.ablation).metric([chosen, ()])
        slow = [plain_edge_metric(nodes, kept) for kept in (chosen, ())]
        assert (own - torch.stack(slow)).abs().max() < 1e-9


def test_all_edges_among_nodes_are_the_circuit_of_these_nodes(problem):
    nodes = tiny_problem("gpt2")
    some = nodes.nodes[1::2]
    edges = problem.graph.among(map(str, some))
    assert (problem.metric([edges]) - nodes.metric([some])).abs().max() < 1e-9


@pytest.mark.parametrize("removed_share", [0.0, 0.4])
@pytest.mark.parametrize(
    ("family", "every"), [("gpt2", (3, 11)), ("gpt2", (23, 29)), ("gpt_neox", (19, 17))]
)
def test_effects_are_the_derivative_of_edge_patched_runs(family, every, removed_share):
    """Against finite differences, example by example, of runs in which one edge more is partly
    removed; readers of many edges and of few are computed in two ways."""
    nodes = tiny_problem(family, "parallel" if family == "gpt_neox" else None)
    problem = EdgeProblem.of(nodes.model, nodes.batch, nodes.ablation)
    graph, (own, asked) = problem.graph, every
    circuit, edges = list(problem.nodes[::own]), list(problem.nodes[::asked])
    found = problem.effects(circuit, edges, removed_share)
    removed = graph.removed([circuit])[:, :, list(range(len(graph.sources)))]
    weights = removed.to(torch.float64).clamp(min=removed_share) * graph.mask
    sources, step = tuple(range(len(graph.sources))), 1e-5

    def at(matrix):
        return patched_metric(problem.model, problem.batch, matrix, problem.ablation, sources)[0]

    for edge, values in zip(edges, found.T, strict=True):
        up, down = weights.clone(), weights.clone()
        up[0][graph.index[edge]] += step
        down[0][graph.index[edge]] -= step
        slope = (at(up) - at(down)) / (2 * step)
        assert values.tolist() == pytest.approx((-slope).tolist(), abs=1e-7)


def test_an_mlp_without_edges_is_not_computed(problem, monkeypatch):
    """Its output is replaced, so its products would be for nothing."""
    inside = problem.graph.among(["a0.h0", "m1"])
    whole, places, linear = problem.metric([inside])[0], [], Plain.linear
    slow = plain_edge_metric(problem, inside)

    def seen(self, x, w, place):
        places.append(place)
        return linear(self, x, w, place)

    monkeypatch.setattr(Plain, "linear", seen)
    assert (problem.metric([inside])[0] - slow).abs().max() < 1e-9
    assert torch.equal(problem.metric([inside])[0], whole)
    assert places.count("mlp.in") == places.count("mlp.out") == 2  # two runs of one MLP


def test_runs_with_and_without_a_derivative_agree(problem):
    """They keep what nodes differ by in two ways."""
    for circuit in (problem.nodes, problem.nodes[::2], problem.nodes[:9]):
        removed = problem.graph.removed([circuit])
        every = tuple(range(len(problem.graph.sources)))
        arguments = (problem.model, problem.batch, removed, problem.ablation, every)
        with torch.enable_grad():
            slow = patched_metric(*arguments)
        with torch.no_grad():
            assert (patched_metric(*arguments) - slow).abs().max() < 1e-12


def test_nothing_of_a_backward_pass_is_kept(problem, monkeypatch):
    """A cycle through autograd's record is one that Python's collector does not see."""
    kept: list[weakref.ref[Gaps]] = []

    class Watched(Gaps):
        def __init__(self, size: int):
            super().__init__(size)
            kept.append(weakref.ref(self))

    monkeypatch.setattr(edges, "Gaps", Watched)
    problem.effects(problem.nodes, problem.nodes)
    gc.collect()
    assert kept
    assert [one for one in kept if one() is not None] == []


def test_one_edge_circuit_costs_one_forward_pass(problem):
    nodes = tiny_problem("gpt2")
    with metered() as meter:
        problem.metric([problem.nodes[::2]])
    assert meter.tokens / forward_tokens(nodes.model, nodes.batch) == 1
    with metered() as meter:
        problem.effects(problem.nodes[::2], problem.nodes)
    assert meter.tokens / forward_tokens(nodes.model, nodes.batch) == 3


@pytest.fixture(scope="module")
def searched():
    how = Specification("wired-suppression", "wired-suppression", prompts=12, level="edge")
    edges = EdgeExperiment(Experiment.set_up(how, load("wired-suppression")))
    rated, whole = scores["eap"].run_edges(edges.scored), Recorder()
    nodes = [str(node) for node in edges.experiment.nodes][:10]
    found = searches["eliminate"].run_edges(edges.discovery, rated, nodes, {}, whole)
    return edges, rated, nodes, found, whole


def test_the_search_goes_on_from_every_state(searched):
    edges, rated, nodes, found, whole = searched
    phases = {json.loads(state)["phase"] for state in whole.states}
    assert {"blocks", "singles", "done"} <= phases
    for state in whole.states:
        again = searches["eliminate"].run_edges(edges.discovery, rated, nodes, {}, Recorder(state))
        assert again == found


def test_the_search_costs_less_than_a_run_for_every_edge():
    """353 edges join; trying each once would cost as many forward passes."""
    how = Specification("wired-suppression", "wired-suppression", prompts=12, level="edge")
    edges = EdgeExperiment(Experiment.set_up(how, load("wired-suppression")))
    problem, nodes = edges.discovery, [str(node) for node in edges.experiment.nodes]
    rated = scores["eap"].run_edges(edges.scored)
    with metered() as meter:
        found = searches["eliminate"].run_edges(problem, rated, nodes)
    assert len(problem.graph.among(nodes)) == 353
    assert float(problem.faithfulness([found.circuit])[0]) == pytest.approx(1, abs=0.02)
    assert meter.tokens / forward_tokens(edges.experiment.model, problem.batch) < 353 / 3


def test_no_single_edge_of_the_circuit_is_without_its_price(searched):
    edges, _, nodes, found, _ = searched
    problem, price = edges.discovery, 0.001
    loss = Loss.of(problem, SEARCH.polish.mean)
    own = float(loss(problem.metric([found.circuit]))[0])
    without = loss(problem.flipped(found.circuit, found.circuit))
    assert (without > own + price).all()
    inside = set(problem.graph.among(nodes))
    assert set(found.circuit) <= inside
    assert sorted(found.ranking) == sorted(problem.nodes)
    assert set(found.ranking[: len(inside)]) == inside
    left = [edge for step in found.rounds[0].steps for edge in step.removed]
    last = [edge for edge in reversed(left) if edge not in set(found.circuit)]
    assert found.ranking == (*found.circuit, *last, *found.ranking[len(inside) :])


def test_steps_are_the_circuits_on_the_way(searched):
    edges, _, nodes, found, _ = searched
    left = list(edges.discovery.graph.among(nodes))
    for step in found.rounds[0].steps:
        left = [edge for edge in left if edge not in step.removed]
        assert len(left) == step.size
        part = edges.discovery.select(slice(0, step.prompts))
        assert float(part.faithfulness([left])[0]) == pytest.approx(step.faithfulness, abs=1e-4)
    assert sorted(left) == sorted(found.circuit)


def test_top_takes_the_smallest_faithful_prefix(problem):
    rated = scores["eap"].run_edges(tiny_problem("gpt2"))
    found = searches["top"].run_edges(problem, rated, (), {"tolerance": 0.2})
    size, ranking = len(found.circuit), rated.ranking()
    assert found.circuit == tuple(ranking[:size])
    assert abs(1 - float(problem.faithfulness([found.circuit])[0])) <= 0.2
    assert abs(1 - float(problem.faithfulness([ranking[: size - 1]])[0])) > 0.2
    assert searches["top"].run_edges(problem, rated, (), {"size": 7}).circuit == tuple(ranking[:7])


def test_searches_that_know_no_edges_say_who_does(problem):
    with pytest.raises(UnweaveError, match="search algorithm1 finds nodes, not edges"):
        searches["algorithm1"].run_edges(problem, EdgeScores((), torch.zeros(0)), ())


def test_edges_outside_come_back_in_reverse_the_most_needed_first(problem):
    """By runs of the whole model without each edge: what leaves first does least."""
    inside, sizes = set(problem.graph.among(["a0.h1", "m0", "a2.h2"])), []
    state = EdgeState(list(problem.nodes))
    descent = EdgeDescent(
        problem, Loss.of(problem, 2.0), 0.001, state, lambda: sizes.append(len(state.circuit))
    )
    descent.outside(inside)
    assert set(state.circuit) == inside
    left = len(problem.nodes) - len(inside)
    assert sorted((*state.circuit, *state.left)) == sorted(problem.nodes)
    assert [size - len(inside) for size in sizes] == [left // 2, left // 4, left // 8, 0]
    without = problem.flipped(problem.nodes, state.left) - problem.reference.full
    effects = without.abs().mean(1)
    assert effects[: left // 2].median() < effects[left // 2 :].median() / 3
    assert state.gone == state.left


def test_an_edge_that_was_exchanged_is_not_lost(problem):
    """The circuit lacks an edge that it needs and has some that it does not."""
    single = problem.flipped(problem.nodes, problem.nodes) - problem.reference.full
    order = [problem.nodes[i] for i in single.abs().mean(1).argsort().tolist()]
    circuit, needed = [*order[-60:-1], *order[:5]], order[-1]
    left = [edge for edge in problem.nodes if edge not in circuit]
    state = EdgeState(circuit, left=left)
    loss, size = Loss.of(problem, 2.0), len(circuit)
    before = float(loss(problem.metric([circuit]))[0]) + 0.001 * size
    EdgeDescent(problem, loss, 0.001, state, lambda: None).exchange([needed, *order[5:40]])
    assert set(state.circuit) - set(circuit)
    assert set(circuit) - set(state.circuit)
    assert float(loss(problem.metric([state.circuit]))[0]) + 0.001 * len(state.circuit) < before
    assert sorted((*state.circuit, *state.gone)) == sorted(problem.nodes)


class ToldEdges:
    """Estimates of faithfulness on check prompts, by size of circuit."""

    def __init__(self, monkeypatch, problem, **found):
        self.found = {int(size[1:]): estimate for size, estimate in found.items()}
        monkeypatch.setattr(edge_eliminate, "_elsewhere", self)
        monkeypatch.setattr(SearchPrompts, "check", self.check)
        edges = [f"e{i}" for i in range(100)]
        steps = [
            Step(len(left), 0.0, 1.0, tuple(edges[len(left) : len(more)]), 64)
            for more, left in itertools.pairwise([edges, edges[:50], edges[:20]])
        ]
        self.joined, self.state = edges, EdgeState(edges[:20], prompts=64, steps=steps)
        prompts = SearchPrompts(replace(problem, draw=lambda part, count: problem), 64, 64)
        options = {"tolerance": 0.05, "precision": 0.05}
        self.run = edge_eliminate._Run(prompts, options, self.state, NoCheckpoint())

    def check(self, prompts, circuit, precision):
        (found,) = self(self.run, [circuit])
        return Checked(found, 0.0)

    def __call__(self, run, circuits):
        found = map(self._of, circuits)
        return [Estimate(value, value - half, value + half, 64) for value, half in found]

    def _of(self, circuit):
        return self.found[len(circuit)]

    def until_done(self):
        for _ in range(SEARCH.rounds.checks):
            edge_eliminate._check(self.run, self.joined)
            assert self.state.phase == "exchange"
        edge_eliminate._check(self.run, self.joined)
        assert self.state.phase == "done"


def test_a_check_that_fails_within_its_error_is_no_failure(problem, monkeypatch):
    told = ToldEdges(monkeypatch, problem, f20=(0.92, 0.06), f50=(1.0, 0.05), f100=(1.0, 0.05))
    told.until_done()
    assert len(told.state.circuit) == 20


@pytest.mark.parametrize(
    ("estimates", "size"),
    [
        # faithful as far as 64 prompts can tell; all edges are no better than that
        ({"f100": (1.0, 0.1), "f50": (0.9, 0.1), "f20": (0.7, 0.1)}, 50),
        # nothing is faithful: what may be as near as the nearest
        ({"f100": (0.8, 0.05), "f50": (0.78, 0.05), "f20": (0.5, 0.05)}, 50),
        ({"f100": (1.0, 0.02), "f50": (0.8, 0.05), "f20": (0.5, 0.05)}, 100),
    ],
)
def test_all_edges_come_back_only_where_no_smaller_circuit_is_as_good(
    problem, monkeypatch, estimates, size
):
    told = ToldEdges(monkeypatch, problem, **estimates)
    told.until_done()
    assert len(told.state.circuit) == size
