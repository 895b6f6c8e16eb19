"""The output of an attention head: the paper's node."""

from unweave.model.model import Model
from unweave.nodes.node import NodeKind, node_kinds

node_kinds.register("head")(NodeKind("head", "output of an attention head", Model.heads))
