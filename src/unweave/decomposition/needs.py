"""What a sweep will take, before it is run."""

from collections.abc import Sequence
from dataclasses import dataclass

from unweave.ablation import side_of
from unweave.batch import Batch
from unweave.decomposition.memory import (
    Chunks,
    Footprint,
    fit,
    footprint,
    memory_budget,
    scores_bytes,
)
from unweave.decomposition.readout import metric_head
from unweave.decomposition.ruleset import find_rules
from unweave.model.model import Model
from unweave.model.weights import Network
from unweave.sites import Point, Site


@dataclass(frozen=True)
class SweepNeeds:
    """Bytes of a sweep.

    Args:
        expected: The peak beyond the model, as the engine will cut the job.
        least: The smallest budget that it can be cut to.
    """

    expected: int
    least: int


def sweep_needs(
    model: Model,
    batch: Batch,
    sources: Sequence[Site],
    rules: str,
    inner: Sequence[Site] = (),
    memory: str | int | None = None,
) -> SweepNeeds:
    """What `relevance` of these sources takes, its ablation given.

    Args:
        inner: Targets of pairs.
    """
    one = batch.select(slice(0, 1))
    network = metric_head(model, one.clean, one.readout, find_rules(rules)).network
    last = Point("z", len(network.body.blocks) - 1)
    whole = any(site.point.depth > last.depth for site in inner)
    results = scores_bytes(network, batch.clean, len(sources), len(inner))
    job = footprint(network, batch.clean, results, None if whole else 1)
    budget, device = memory_budget(memory, network.device), network.device
    if job.least > budget:
        return SweepNeeds(job.least, job.least)
    chunks = fit(job, len(batch), len(sources), budget, device)
    return SweepNeeds(_expected(job, chunks, network, batch, sources), job.least)


def _expected(
    job: Footprint, chunks: Chunks, network: Network, batch: Batch, sources: Sequence[Site]
) -> int:
    """A budget is a promise, so its terms are the largest possible; a call holds no more rows than
    there are."""
    positions = side_of(sources[0].point, batch.clean).mask.shape[1]
    most = chunks.examples * chunks.sources * positions
    rows = Chunks(chunks.examples, chunks.sources, min(chunks.rows, most), chunks.head_rows)
    return job.bytes(rows)
