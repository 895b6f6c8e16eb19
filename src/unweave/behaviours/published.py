"""What is known of a published circuit besides its heads: their roles, and the model's shape.

Papers name models ("gpt2"); users have folders. A folder that holds GPT-2 small is known by its
config. The config does not tell one training run from another, so a model that was trained anew
in the same shape matches too; results name the reference that they were compared with.
"""

from collections.abc import Mapping
from typing import NamedTuple

from unweave.model.model import Model
from unweave.sites import Site, parse

PublishedRoles = Mapping[str, tuple[Site, ...]]


class ModelShape(NamedTuple):
    """The part of a config that says which released model it is."""

    architecture: str
    layers: int
    heads: int
    width: int
    vocabulary: int

    @staticmethod
    def of(model: Model) -> "ModelShape | None":
        """The shape of a model with one stack of equal blocks; None for others."""
        body = model.network.body
        tokens = body.embedding.tokens
        if model.network.encoder is not None or tokens is None:
            return None
        heads = {block.attention.heads for block in body.blocks}
        if len(heads) != 1:
            return None
        vocabulary, width = tokens.shape
        return ModelShape(model.architecture, len(body.blocks), heads.pop(), width, vocabulary)


GPT2_SMALL = ModelShape("gpt2", 12, 12, 768, 50257)
ATTN_ONLY_4L = ModelShape("transformer_lens", 4, 8, 512, 48262)


def published_roles(text: str) -> PublishedRoles:
    """Reads lines such as "name mover: 9.9@end 9.6@end …": heads at the position where they act."""
    lines = (line.partition(":") for line in text.strip().splitlines())
    return {name.strip(): tuple(map(parse, listed.split())) for name, _, listed in lines}
