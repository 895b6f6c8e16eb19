"""The output of an MLP."""

from unweave.model.model import Model
from unweave.nodes.node import NodeKind, node_kinds

node_kinds.register("mlp")(NodeKind("mlp", "output of an MLP", Model.mlps))
