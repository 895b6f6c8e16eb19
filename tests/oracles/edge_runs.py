"""Circuits of edges by the slow decoder of `copies`: every reader's stream put together by hand."""

from collections.abc import Collection

import torch
from oracles.copies import Written, copies
from torch import Tensor

from unweave.scores.problem import Runs
from unweave.sites import Point


def ablated_writes(problem: Runs) -> Written:
    """What each node writes into the stream at the ablation."""
    network, values = problem.model.network, problem.ablation.values
    rows = problem.ablation.rows
    chosen = list(range(len(problem.batch))) if rows is None else rows.tolist()
    found = {"input": values[Point("embed")][chosen]}
    for layer, block in enumerate(network.body.blocks):
        w = block.attention
        z = values[Point("z", layer)][chosen]
        for head in range(w.heads):
            part = w.out.matrix[:, head * w.d_head : (head + 1) * w.d_head]
            found[f"a{layer}.h{head}"] = z[:, :, head] @ part.T
        if block.mlp is not None:
            found[f"m{layer}"] = values[Point("mlp", layer)][chosen]
    return found


def plain_edge_metric(problem: Runs, kept: Collection[str]) -> Tensor:
    """The difference of mean logits of a circuit of edges, prompt by prompt."""
    base, own, readout = ablated_writes(problem), {*kept}, problem.batch.readout
    assert readout.metric.name == "logit difference"
    assert bool(problem.batch.clean.mask.all()), "the slow decoder knows no padding"

    def shift(destination: str, written: Written) -> Tensor:
        missing = [u for u in written if f"{u}->{destination}" not in own]
        return sum((base[u] - written[u] for u in missing), torch.zeros(()))

    with torch.no_grad():
        logits = copies(problem.model.network, problem.batch.clean.tokens, shift).logits
    found = []
    for row, at in enumerate(readout.read.tolist()):
        means = [
            logits[row, at, [i for i in ids[row].tolist() if i >= 0]].mean()
            for ids in (readout.answers, readout.distractors)
        ]
        found.append(means[0] - means[1])
    return torch.stack(found)


def plain_edge_faithfulness(problem: Runs, kept: Collection[str]) -> float:
    """(m(C) − m(∅)) / (m(M) − m(∅)) of mean metrics, by three slow runs."""
    full, empty, own = (
        float(plain_edge_metric(problem, edges).double().mean())
        for edges in (problem.nodes, (), kept)
    )
    return (own - empty) / (full - empty)
