"""`NodeKind`: what a circuit may be made of, and the registry of kinds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor

from unweave.errors import UnweaveError
from unweave.model.model import Model
from unweave.model.program import Inputs
from unweave.registry import Registry
from unweave.sites import OTHER, Site

WHERE = ("", "position", "token")


@dataclass(frozen=True)
class NodeKind:
    """A kind of node.

    Args:
        summary: One line about it.
        sites: Every node of this kind that a model has.
    """

    name: str
    summary: str
    sites: Callable[[Model], list[Site]]


node_kinds: Registry[NodeKind] = Registry("node kind", "unweave.nodes")


def read_granularity(text: str) -> tuple[str, str]:
    """Kind and where: "head", "head@position" (named positions and the others) or "head@token".

    Raises:
        UnweaveError: For an unknown kind or place.
    """
    kind, at, where = text.partition("@")
    node_kinds[kind]
    if where not in WHERE or bool(at) != bool(where):
        raise UnweaveError(
            f"granularity {text!r}: expected {kind}, {kind}@position (the task's named positions, "
            f"and all others as one) or {kind}@token (every position by its number)"
        )
    return kind, where


def find_nodes(
    model: Model,
    granularity: str,
    mlps: bool,
    inputs: Inputs,
    positions: Mapping[str, Int[Tensor, " batch"]],
) -> tuple[Site, ...]:
    """Every node that a circuit may hold, in the order of the forward pass.

    Args:
        mlps: Whether MLPs are nodes too (else they are never ablated).
        inputs: The prompts, for their length.
        positions: Named positions of the prompts.

    Raises:
        UnweaveError: For a granularity that the model or the prompts do not have.
    """
    kind, where = read_granularity(granularity)
    sites = list(node_kinds[kind].sites(model))
    if mlps and kind != "mlp":
        sites += node_kinds["mlp"].sites(model)
    if not sites:
        raise UnweaveError(f"{model.name} has no nodes of kind {kind}: choose another granularity")
    sites.sort(key=lambda site: site.point.depth)
    if not where:
        return tuple(sites)
    if model.family == "encoder-decoder":
        raise UnweaveError(
            f"granularity {granularity}: {model.name} reads one text and writes another, whose "
            f"positions have no names in common; use {kind}"
        )
    if where == "position":
        return tuple(site.at(name) for site in sites for name in (*positions, OTHER))
    lengths = inputs.mask.sum(-1)
    shortest, longest = int(lengths.min()), int(lengths.max())
    if shortest != longest:
        raise UnweaveError(
            f"granularity {granularity}: prompts have {shortest} to {longest} tokens, so numbers "
            f"do not name the same word in each; use {kind}@position"
        )
    return tuple(site.at(index) for site in sites for index in range(longest))
