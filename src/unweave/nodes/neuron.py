"""A hidden neuron of an MLP, after its activation (and gate)."""

from unweave.model.model import Model
from unweave.nodes.node import NodeKind, node_kinds
from unweave.sites import Point, Site


def sites(model: Model) -> list[Site]:
    """Every neuron, layer by layer."""
    found = []
    for mlp in model.mlps():
        point = Point("neuron", mlp.point.layer, mlp.point.stack)
        found += [Site(point, unit) for unit in range(model.units(point))]
    return found


node_kinds.register("neuron")(NodeKind("neuron", "hidden neuron of an MLP", sites))
