"""Tasks for models that code builds: the circuit is known because we put it there."""

from collections.abc import Mapping

from unweave.behaviours.task import KnownCircuit
from unweave.model.synthetic import Wiring


def by_construction(wiring: Mapping[str, Wiring], reference: str) -> KnownCircuit:
    """A wiring as the known circuit of a task, per ablation."""
    return KnownCircuit(
        wiring["mean"].nodes,
        reference,
        ablations={name: found.nodes for name, found in wiring.items()},
        edges={name: found.edges for name, found in wiring.items()},
    )
