"""`check_method`: the contract of a file in `methods`."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import torch

from unweave.ablation import ZERO, Ablation, counterfactual
from unweave.batch import Batch, Readout
from unweave.circuits import EdgeScores, Scores
from unweave.errors import UnweaveError
from unweave.graph import graph_of, graph_points
from unweave.metrics import LOGIT_DIFFERENCE, Metric
from unweave.model.checkpoint import architectures
from unweave.model.loading import from_transformers
from unweave.model.model import Model
from unweave.model.weights import Linear
from unweave.scores.problem import Method, Problem, methods
from unweave.sites import Site
from unweave.testing.inputs import random_inputs
from unweave.testing.oracle import build

LENGTH = 6


def check_method(method: "str | Method") -> None:
    """Checks a method on tiny random models of two families.

    Every node gets one finite score, the same again for the same call; heads, MLPs and nodes at
    single positions are scored; edges are, where the method has them; nodes that equal their
    ablation score 0 (unless scores are drawn by a seed, which then decides them); unknown options
    and granularities that the method lacks are errors that name what there is.

    Raises:
        AssertionError: Naming the first thing that is wrong.
    """
    method = methods[method] if isinstance(method, str) else method
    for family in ("gpt2", "llama"):
        problem = tiny_problem(family)
        scores = _check_nodes(method, problem)
        _check_silence(method, problem, scores)
        _check_positions(method, problem)
        _check_edges(method, tiny_problem(family, rows=1, layers=2))
    _check_options(method, tiny_problem("gpt2"))


def tiny_problem(
    architecture: str,
    variant: str | None = None,
    ablation: Literal["counterfactual", "zero"] = "counterfactual",
    metric: Metric = LOGIT_DIFFERENCE,
    nodes: Sequence[Site] | None = None,
    rows: int = 3,
    layers: int | None = None,
    dtype: torch.dtype = torch.float64,
) -> Problem:
    """Random prompts for a tiny random model; by default all heads and MLPs are nodes.

    Args:
        layers: Keeps only the first so many.
    """
    tiny = architectures[architecture].tiny
    oracle = build(tiny[variant or next(iter(tiny))], dtype)
    model = from_transformers(oracle, f"tiny {architecture}")
    body = replace(model.network.body, blocks=model.network.body.blocks[:layers])
    model = replace(model, network=replace(model.network, body=body))
    clean, corrupted = (
        random_inputs(oracle.config, LENGTH, dtype=dtype, seed=seed).select(slice(0, rows))
        for seed in (0, 1)
    )
    chosen = tuple(nodes or [*model.heads(), *model.mlps()])
    length = (clean.decoder or clean).mask.shape[1]
    read = length - 1 - torch.arange(len(clean.mask)) % 2
    draw, many = torch.Generator().manual_seed(0), _outputs(model)
    ids = torch.stack([torch.randperm(many, generator=draw)[:2] for _ in clean.mask])
    texts = tuple(f"prompt {i}" for i in range(len(clean.mask)))
    batch = Batch(
        clean=clean,
        corrupted=corrupted,
        readout=Readout(metric, ids[:, :1], ids[:, 1:], read),
        read_corrupted=read,
        positions={"end": read, "start": torch.zeros_like(read)},
        groups=torch.zeros_like(read),
        aligned=True,
        texts=texts,
        corrupted_texts=texts,
    )
    return replace(
        Problem(model, batch, chosen, ZERO),
        ablation=ZERO if ablation == "zero" else _counterfactual(model, batch, chosen),
    )


def _outputs(model: Model) -> int:
    return next(len(s.matrix) for s in reversed(model.network.head.steps) if isinstance(s, Linear))


def _counterfactual(model: Model, batch: Batch, nodes: Sequence[Site]) -> Ablation:
    points = {node.point for node in nodes}
    with contextlib.suppress(UnweaveError):  # not every architecture has edges
        points |= set(graph_points(model))
    return counterfactual(model, batch.corrupted, points)


def _check_nodes(method: Method, problem: Problem) -> Scores:
    scores = method.run(problem)
    names = tuple(map(str, problem.nodes))
    assert scores.sources == names, f"scores of {scores.sources[:3]}…, expected {names[:3]}…"
    count = scores.examples.shape[-1]
    assert scores.examples.shape == (len(names), count), "one score a node and example"
    assert 1 <= count <= len(problem.batch), f"{count} examples scored of {len(problem.batch)}"
    mean = scores.examples.mean(1)
    assert torch.allclose(scores.values, mean, atol=1e-6), "values are not the examples' means"
    assert scores.values.isfinite().all(), "a score is not finite"
    assert scores.values.abs().max() > 0, "every score is 0"
    again = method.run(problem)
    assert torch.equal(scores.values, again.values), "the same call gives other scores"
    assert scores.about.get("method") == method.name, "about.method does not name the method"
    heads = tuple(problem.model.heads())
    alone = method.run(replace(problem, nodes=heads))
    assert alone.sources == tuple(map(str, heads)), "heads alone are not scored"
    return scores


def _check_silence(method: Method, problem: Problem, scores: Scores) -> None:
    if "seed" in method.options:
        other = method.run(problem, seed=method.options["seed"] + 1)
        assert not torch.equal(scores.values, other.values), "the seed changes nothing"
        return
    # The corrupted prompt is the clean one, and the ablation the clean activations.
    batch = replace(problem.batch, corrupted=problem.batch.clean)
    same = replace(
        problem, batch=batch, ablation=_counterfactual(problem.model, batch, problem.nodes)
    )
    worst = method.run(same).values.abs().max()
    assert worst < 1e-9, f"nodes that equal their ablation score up to {worst:.1e}, expected 0"


def _check_positions(method: Method, problem: Problem) -> None:
    heads = problem.model.heads()
    nodes = tuple(head.at(where) for head in heads for where in ("start", "end", 2))
    at = replace(problem, nodes=nodes)
    if method.positions:
        scores = method.run(at)
        assert scores.sources == tuple(map(str, nodes)), "nodes at positions are not scored"
        assert scores.values.isfinite().all(), "a score at a position is not finite"
        return
    _check_error(lambda: method.run(at), [n for n in methods if methods[n].positions])


def _check_edges(method: Method, problem: Problem) -> None:
    if not method.edges:
        _check_error(lambda: method.run_edges(problem), [n for n in methods if methods[n].edges])
        return
    scores: EdgeScores = method.run_edges(problem)
    assert scores.edges == graph_of(problem.model).edges, "not every edge is scored"
    assert scores.values.isfinite().all(), "the score of an edge is not finite"
    again = method.run_edges(problem)
    assert torch.equal(scores.values, again.values), "the same call gives other scores of edges"


def _check_options(method: Method, problem: Problem) -> None:
    _check_error(lambda: method.run(problem, no_such_option=1), ["no_such_option"])


def _check_error(call: Callable[[], object], named: Sequence[str]) -> None:
    message = None
    try:
        call()
    except UnweaveError as error:
        message = str(error)
    assert message is not None, f"no error; expected one that names {', '.join(named)}"
    missing = [name for name in named if name not in message]
    assert not missing, f"the error {message!r} does not name {', '.join(missing)}"
