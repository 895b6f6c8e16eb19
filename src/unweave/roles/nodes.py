"""The nodes that roles are defined for."""

from collections.abc import Sequence

from unweave.errors import UnweaveError
from unweave.graph import graph_of
from unweave.model.model import Model
from unweave.sites import Site, parse

KINDS = ("z", "mlp")  # heads and MLPs


def checked_nodes(model: Model, nodes: Sequence[Site | str]) -> tuple[Site, ...]:
    """Nodes that roles are defined for, in the order of the forward pass.

    Raises:
        UnweaveError: For nodes that are neither, or an architecture whose nodes' outputs do not add
            up.
    """
    graph_of(model, post_norms=False)  # raises where writes do not add up
    sites = tuple(parse(node) for node in nodes)
    if not sites:
        raise UnweaveError("no node to explain: give the sites of a circuit, such as a9.h6")
    for site in sites:
        model.check_site(site)
        if site.point.kind not in KINDS:
            raise UnweaveError(
                f"{site} is neither a head nor an MLP: name some, such as a9.h6 or m5"
            )
    return tuple(sorted(sites, key=lambda site: (site.point.depth, site.unit or 0)))
