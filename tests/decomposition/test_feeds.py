"""Shares of what a reader reads, compared with sums of vectors and with the split itself."""

import pytest
import torch

from unweave.ablation import counterfactual
from unweave.decomposition.api import decompose
from unweave.decomposition.feeds import feeds
from unweave.errors import UnweaveError
from unweave.graph import graph_of, graph_points
from unweave.sites import Point
from unweave.testing.problem import tiny_problem

FAMILIES = [("gpt2", None), ("llama", None), ("qwen3", None), ("gemma2", None)]
FAMILIES += [("gpt_neox", "parallel")]


@pytest.mark.parametrize("shape", FAMILIES, ids=str)
@pytest.mark.parametrize("reader", ["a1.h1<q>", "a1.h1<k>@end", "a1.h0.v", "m1", "m1@start"])
def test_shares_of_upstream_nodes_add_up_to_one(shape, reader):
    problem = tiny_problem(*shape)
    scores = feeds(problem.model, problem.batch, problem.ablation, reader)
    graph = graph_of(problem.model)
    label = reader.split("@")[0].replace(".h0.v", ".h0<v>")
    names = [edge.split("->")[0] for edge in graph.edges if edge.endswith(f"->{label}")]
    assert list(scores.sources) == names
    assert (scores.examples.sum(0) - 1).abs().max() < 1e-10
    assert (scores.values - scores.examples.mean(1)).abs().max() < 1e-12
    assert scores.values.abs().max() > 1e-3


def test_a_share_by_hand():
    """GPT-2: out_s − out_s(μ), centred and scaled as the norm does, through one head's W_K."""
    problem = tiny_problem("gpt2")
    model, batch = problem.model, problem.batch
    points = [Point("embed"), Point("z", 0), Point("mlp", 0), Point("resid", 1)]
    clean, other = (counterfactual(model, x, points).values for x in (batch.clean, batch.corrupted))
    block = model.network.body.blocks[0]
    wide = {p: clean[p] - other[p] for p in points}
    out = block.attention.out.matrix
    heads = [
        wide[Point("z", 0)][:, :, h] @ out[:, h * 6 : (h + 1) * 6].T
        for h in range(block.attention.heads)
    ]
    deltas = [wide[Point("embed")], *heads, wide[Point("mlp", 0)]]
    # Everything that was written is what the stream holds beyond the counterfactual's.
    assert (torch.stack(deltas).sum(0) - wide[Point("resid", 1)]).abs().max() < 1e-12
    x, pre = clean[Point("resid", 1)], model.network.body.blocks[1].branches[0].pre
    assert pre is not None
    assert pre.weight is not None
    scale = pre.weight / (x.var(-1, correction=0, keepdim=True) + pre.eps).sqrt()
    weight = model.network.body.blocks[1].attention.k.matrix[12:18]
    keys = [((d - d.mean(-1, keepdim=True)) * scale) @ weight.T for d in deltas]
    whole = torch.stack(keys).sum(0)
    expected = torch.stack([(k * whole).sum((1, 2)) / (whole**2).sum((1, 2)) for k in keys])
    scores = feeds(model, batch, problem.ablation, "a1.h2<k>")
    assert (scores.examples - expected).abs().max() < 1e-12


def test_tokens_by_all_their_paths():
    problem = tiny_problem("llama")
    model, batch = problem.model, problem.batch
    tokens = [f"embed@{i}" for i in range(batch.clean.mask.shape[1])]
    found = feeds(model, batch, problem.ablation, "a1.h1<q>@end", tokens)
    split = decompose(model, batch.clean, tokens, "a1.h1.q", "removal", problem.ablation)
    rows, read = torch.arange(len(batch)), batch.positions["end"]
    rel = split.rel["a1.h1.q"][:, rows, read]
    stream = [Point("resid", 1)]
    x, base = (
        counterfactual(model, y, stream).values[stream[0]] for y in (batch.clean, batch.corrupted)
    )
    block = model.network.body.blocks[1]
    pre = block.branches[0].pre
    assert pre is not None
    assert pre.weight is not None
    gain = pre.weight / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    d_head = block.attention.d_head
    whole = ((x - base) * gain)[rows, read] @ block.attention.q.matrix[d_head : 2 * d_head].T
    expected = (rel * whole).sum(-1) / whole.pow(2).sum(-1)
    assert found.sources == split.sources
    assert found.about["path"] == "total"
    assert (found.examples - expected).abs().max() < 1e-10
    assert expected.abs().max() > 0.1
    assert (found.examples[int(read[1]) + 1 :, 1] == 0).all()  # behind the reader


def test_a_reader_that_equals_its_ablation_has_no_shares():
    problem = tiny_problem("gpt2")
    same = counterfactual(problem.model, problem.batch.clean, graph_points(problem.model))
    assert (feeds(problem.model, problem.batch, same, "a1.h0<q>").examples == 0).all()


@pytest.mark.parametrize(
    ("reader", "message"),
    [
        ("a1.h0", "a1.h0 reads nothing: expected e.g. a9.h6<q>"),
        ("resid1", "resid1 reads nothing"),
        ("a1.h9<q>", "a1.h9: layer 1 has heads 0–3"),
        ("a1<q>", "is not a site"),
    ],
)
def test_readers_that_do_not_exist_are_named(reader, message):
    problem = tiny_problem("gpt2")
    with pytest.raises(UnweaveError, match=message):
        feeds(problem.model, problem.batch, problem.ablation, reader)


def test_given_sources_are_not_followed_into_an_mlp():
    problem = tiny_problem("gpt2")
    with pytest.raises(UnweaveError, match="m1 is an MLP: given sources are followed into q, k"):
        feeds(problem.model, problem.batch, problem.ablation, "m1", ["embed@0"])
