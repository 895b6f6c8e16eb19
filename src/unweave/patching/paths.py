"""Paths as runs: what the metric loses when one path is cut and everything else stays as it was.

The first reader on the path reads its stream without what the source adds; what that changes in its
write is taken out of what the next reader reads, by the input that the path names, and so on to the
logits. Every other reader gets the stream of the plain run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.batch import Batch
from unweave.model.model import Model
from unweave.model.parts import NodeFunction, head_part, logits_part, mlp_part
from unweave.sites import Site

Residual = Float[Tensor, "batch position d_model"]


@dataclass(frozen=True, eq=False)
class CutPath:
    """A path to cut.

    Args:
        change: What its source adds to the residual stream beyond its ablation.
        hops: Each node on the way with the input that the path takes ("q", "k", "v"; "" of MLPs).
    """

    change: Residual
    hops: Sequence[tuple[Site, str]]


def run_cut_paths(
    model: Model, batch: Batch, read: Mapping[tuple[int, str], Residual], paths: Sequence[CutPath]
) -> Float[Tensor, "path batch"]:
    """m(M) − m(M without the path) of each path, on each prompt.

    Args:
        read: What every reader reads in a plain run: by layer and branch ("attention", "mlp"), and
            by (layers, "logits").
    """
    final = read[len(model.network.body.blocks), "logits"]
    rows, at = torch.arange(len(final), device=final.device), batch.readout.read
    to_logits = logits_part(model)

    def metric(stream: Residual) -> Float[Tensor, " batch"]:
        return batch.readout.measure(to_logits(stream[rows, at]))

    with torch.no_grad():
        whole = metric(final)
        found = [whole - metric(final - _carried(model, batch, read, path)) for path in paths]
    return torch.stack(found) if found else final.new_zeros(0, len(final))


def _carried(
    model: Model, batch: Batch, read: Mapping[tuple[int, str], Residual], path: CutPath
) -> Residual:
    """What the last node of a path writes less without what the path brings."""
    change = path.change
    for site, branch in path.hops:
        part, key, branches = _reader(model, batch, site)
        whole = dict.fromkeys(branches, read[key])
        change = part(whole) - part({**whole, branch: read[key] - change})
    return change


def _reader(
    model: Model, batch: Batch, site: Site
) -> tuple[NodeFunction, tuple[int, str], tuple[str, ...]]:
    layer = site.point.layer
    if site.point.kind == "mlp":
        return mlp_part(model, layer), (layer, "mlp"), ("",)
    return head_part(model, batch.clean, site), (layer, "attention"), ("q", "k", "v")
