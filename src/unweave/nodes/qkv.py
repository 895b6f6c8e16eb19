"""The query, key and value of an attention head; keys and values count key-value heads."""

from unweave.model.model import Model
from unweave.nodes.node import NodeKind, node_kinds
from unweave.sites import Point, Site, head_point


def sites(model: Model) -> list[Site]:
    """Every query, key and value, layer by layer."""
    points: dict[Point, None] = {}
    for head in model.heads():
        cross = head.point.kind == "cz"
        for part in ("q", "k", "v"):
            points[head_point(part, head.point.layer, head.point.stack, cross)] = None
    return [Site(point, unit) for point in points for unit in range(model.units(point))]


node_kinds.register("qkv")(NodeKind("qkv", "query, key or value of an attention head", sites))
