"""Random problems on tiny random models, for contract suites and tests."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import torch

from unweave.ablation import ZERO, Ablation, counterfactual
from unweave.batch import Batch, Readout
from unweave.errors import UnweaveError
from unweave.graph import graph_points
from unweave.metrics import LOGIT_DIFFERENCE, Metric
from unweave.model.checkpoint import architectures
from unweave.model.loading import from_transformers
from unweave.model.model import Model
from unweave.model.weights import Linear
from unweave.scores.problem import Problem
from unweave.sites import Site
from unweave.testing.inputs import random_inputs
from unweave.testing.oracle import build

LENGTH = 6


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
        layers: Keeps only the first ones, this many.
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
        ablation=ZERO if ablation == "zero" else paired_ablation(model, batch, chosen),
    )


def _outputs(model: Model) -> int:
    return next(len(s.matrix) for s in reversed(model.network.head.steps) if isinstance(s, Linear))


def paired_ablation(model: Model, batch: Batch, nodes: Sequence[Site]) -> Ablation:
    """The corrupted prompts' activations, at nodes and at the sources of edges."""
    points = {node.point for node in nodes}
    with contextlib.suppress(UnweaveError):  # not every architecture has edges
        points |= set(graph_points(model))
    return counterfactual(model, batch.corrupted, points)


def check_error(call: Callable[[], object], named: Sequence[str]) -> None:
    """Raises `AssertionError` unless the call fails with an error that names all of these."""
    message = None
    try:
        call()
    except UnweaveError as error:
        message = str(error)
    assert message is not None, f"no error; expected one that names {', '.join(named)}"
    missing = [name for name in named if name not in message]
    assert not missing, f"the error {message!r} does not name {', '.join(missing)}"
