"""EAP-IG: gradients averaged on a path from ablation to clean (Hanna, Pezzelle & Belinkov, 2024).

EAP's scores (see `eap.py`) with ∂m/∂· replaced by its mean over m steps, α = 1/m … 1:

- on inputs: at runs whose embeddings are e′ + α(e − e′), e′ those of the corrupted prompt. The
  last step is the clean run, whose activations are the nodes' own.
- on activations: for each point (all heads of a layer, or an MLP) at runs in which it, and nothing
  before it, is μ + α(z − μ). Each run begins at that layer.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from unweave.ablation import Ablation, activations
from unweave.batch import Batch
from unweave.circuits import EdgeScores, Scores
from unweave.errors import UnweaveError
from unweave.graph import Graph, graph_of
from unweave.model.model import Model
from unweave.model.program import Stream, stages
from unweave.options import Option, Options
from unweave.patching.circuits import read_positions
from unweave.scores.edges import (
    EdgeGradients,
    contributions,
    edge_parts,
    matrix_of,
)
from unweave.scores.gradients import (
    Activations,
    Tap,
    ablation_of,
    differences,
    gradients_at,
    metric_gradients,
    node_products,
    parts,
    run_from,
)
from unweave.scores.problem import Problem
from unweave.scores.score import Score, edge_scores, node_scores, scores
from unweave.sites import Point


def score(problem: Problem, options: Options) -> Scores:
    """`steps` forward and backward passes on inputs; on activations, as many for each point."""
    steps, on = _checked(problem, options)
    model, columns = problem.model, []
    for part in parts(len(problem.batch), model.network.device):
        batch, ablation = problem.batch.select(part), problem.ablation.select(part)
        if on == "inputs":
            total, values = _on_inputs(problem, batch, steps)
        else:
            total, values = _on_activations(problem, batch, ablation, steps)
        mean = {point: g / steps for point, g in total.items()}
        columns.append(node_products(problem, mean, differences(values, ablation, batch), batch))
    examples = torch.cat(columns, 1)
    return node_scores(problem, examples, score="eap-ig", steps=str(steps), on=on)


def score_edges(problem: Problem, options: Options) -> EdgeScores:
    """The same passes as for nodes: all destinations' gradients come from one backward pass."""
    steps, on = _checked(problem, options)
    model, graph, total = problem.model, graph_of(problem.model), None
    for part in edge_parts(problem, graph):
        batch, ablation = problem.batch.select(part), problem.ablation.select(part)
        if on == "inputs":
            gradients = EdgeGradients(model, batch, graph)
            runs = [gradients.add(given) for given in input_path(model, batch, steps)]
            scores = matrix_of(gradients, contributions(model, graph, batch, ablation, runs[-1]))
        else:
            scores = _edges_on_activations(model, graph, batch, ablation, steps)
        total = scores if total is None else total + scores
    assert total is not None
    matrix = total / (steps * len(problem.batch))
    return edge_scores(problem, graph, matrix, score="eap-ig", steps=str(steps), on=on)


def _checked(problem: Problem, options: Options) -> tuple[int, str]:
    steps, on = options["steps"], options["on"]
    if on == "inputs" and not problem.batch.aligned:
        raise UnweaveError(
            "eap-ig on inputs needs clean and corrupted prompts of one length: use "
            "on='activations', or eap"
        )
    return steps, on


def input_path(model: Model, batch: Batch, steps: int) -> Iterator[dict[Point, Tensor]]:
    """What enters the first layer at each step; the last is the clean run's own."""
    points = [Point("embed")]
    if model.network.encoder is not None:
        points.append(Point("embed", 0, "enc"))
    clean = activations(model, batch.clean, points)
    corrupted = activations(model, batch.corrupted, points)
    for step in range(1, steps + 1):
        yield {p: torch.lerp(corrupted[p], clean[p], step / steps) for p in points}


def _on_inputs(
    problem: Problem, batch: Batch, steps: int
) -> tuple[dict[Point, Tensor], dict[Point, Tensor]]:
    total, values = {}, {}
    for given in input_path(problem.model, batch, steps):
        gradients, values, _ = metric_gradients(problem.model, batch, problem.points, given=given)
        total = {p: total[p] + g for p, g in gradients.items()} if total else gradients
    return total, values


def _on_activations(
    problem: Problem, batch: Batch, ablation: Ablation, steps: int
) -> tuple[dict[Point, Tensor], dict[Point, Tensor]]:
    model, total = problem.model, {}
    run, streams = _clean_run(model, batch, problem.points)
    for point, value in run.computed.items():
        base = ablation_of(ablation, point, value, batch)
        start = _stage_of(model, batch, point)
        for step in range(1, steps + 1):
            given = {point: torch.lerp(base, value, step / steps)}
            ops = _tap(model, batch, (point,), given)
            with torch.enable_grad():
                metric = run_from(model, batch, ops, start, streams[start])
                gradient = gradients_at(metric, ops.taps)[point]
            total[point] = total[point] + gradient if point in total else gradient
    return total, run.computed


def _edges_on_activations(
    model: Model, graph: Graph, batch: Batch, ablation: Ablation, steps: int
) -> Tensor:
    clean = EdgeGradients(model, batch, graph).add()
    _, streams = _clean_run(model, batch, ())
    sources, scores = contributions(model, graph, batch, ablation, clean), None
    for point, rows in graph.source_rows.items():
        value, start = clean.computed[point], _stage_of(model, batch, point)
        base = ablation_of(ablation, point, value, batch)
        gradients = EdgeGradients(model, batch, graph)
        for step in range(1, steps + 1):
            gradients.add({point: torch.lerp(base, value, step / steps)}, start, streams[start])
        part = matrix_of(gradients, sources, rows)
        scores = part if scores is None else scores + part
    assert scores is not None
    return scores


def _tap(model: Model, batch: Batch, points: tuple[Point, ...], given: Activations) -> Tap:
    reads = read_positions(model, batch)[:, None]
    return Tap({}, Ablation("none"), len(batch), reads, points=frozenset(points), given=given)


def _clean_run(
    model: Model, batch: Batch, points: tuple[Point, ...]
) -> tuple[Tap, list[Stream[Tensor] | None]]:
    """A plain run with what its nodes computed, and what enters each stage of the program."""
    ops, streams, stream = _tap(model, batch, points, {}), [], None
    with torch.no_grad():
        for stage in stages(model.network, batch.clean):
            streams.append(stream)
            stream = stage.apply(ops, stream)
            memory = None if stream.memory is None else stream.memory.detach()
            stream = Stream(stream.x.detach(), memory)
    return ops, streams


def _stage_of(model: Model, batch: Batch, point: Point) -> int:
    prefix = "enc." if point.stack else ""
    name = f"{prefix}embed" if point.kind == "embed" else f"{prefix}block {point.layer}"
    return [stage.name for stage in stages(model.network, batch.clean)].index(name)


scores.register("eap-ig")(
    Score(
        "eap-ig",
        "gradients averaged along corrupted → clean inputs",
        score,
        {
            "steps": Option(5, "points on the path from corrupted to clean", low=1),
            "on": Option(
                "inputs",
                "what the path changes: inputs (the embedding) or activations (each layer's own)",
                choices=("inputs", "activations"),
            ),
        },
        edges=score_edges,
    )
)
