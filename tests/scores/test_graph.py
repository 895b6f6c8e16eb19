"""The graph of edges: its size, its names, who has one; and its scores on disk."""

import pytest
import torch

from unweave.circuits import EdgeScores
from unweave.errors import UnweaveError
from unweave.graph import _graph, graph_of
from unweave.scores.score import scores as registered
from unweave.testing.problem import tiny_problem


def test_edges_of_gpt2_small():
    graph = _graph(((12, True, False),) * 12)
    assert len(graph.nodes) == 158
    assert len(graph.edges) == len(set(graph.edges)) == 32_491
    for name in ("a0.h0->a5.h1<q>", "input->m0", "m11->logits", "a3.h4->m3", "m10->a11.h0<v>"):
        assert name in graph.index
    for name in ("a5.h1->a5.h2<q>", "m5->a5.h1<k>", "input->input", "a5.h1->m4"):
        assert name not in graph.index


def test_parallel_blocks_have_no_edge_within():
    graph = graph_of(tiny_problem("gpt_neox", "parallel").model)
    assert "a1.h0->m1" not in graph.index
    assert "a0.h0->m1" in graph.index


@pytest.mark.parametrize("name", ["bert", "olmo2", "t5"])
def test_edges_refuse_other_architectures(name):
    with pytest.raises(UnweaveError, match="score nodes instead"):
        graph_of(tiny_problem(name, "masked lm" if name == "bert" else None).model)


def test_edge_scores_are_saved(tmp_path):
    scores = registered["eap"].run_edges(tiny_problem("gpt2"))
    scores.save(tmp_path / "edges.safetensors")
    again = EdgeScores.load(tmp_path / "edges.safetensors")
    assert again.edges == scores.edges
    assert torch.equal(again.values, scores.values)
    assert again.about == scores.about
    assert again.ranking() == scores.ranking()
