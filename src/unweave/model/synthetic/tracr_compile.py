"""RASP programs compiled by tracr, as named matrices: what each head and MLP reads and writes."""

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.model.synthetic import BOS, UNKNOWN
from unweave.sites import Point, Site

LETTERS = ("a", "b", "c", "d")
VOCABULARY = (BOS, *LETTERS, UNKNOWN)
LENGTH = 8  # letters at most

Matrix = Float[Tensor, "_ _"]  # [d_in, d_out], of any size: a record holds several


def tracr(module: str) -> Any:
    """A module of tracr, which is an extra and untyped."""
    return importlib.import_module(f"tracr.{module}")


@dataclass(frozen=True, eq=False)
class CraftPart:
    """A head or MLP: what it reads by input ("q", "k", "v" or "in"), and what it writes."""

    site: Site
    reads: dict[str, Matrix]
    writes: Matrix


@dataclass(frozen=True, eq=False)
class Compiled:
    """A program as parts over a residual stream whose directions have names.

    Args:
        labels: The variable of each direction ("tokens", "hist", "one", …); "bos" for the token.
        directions: tracr's own name of each direction.
        output: Directions of the result, and in `values` what each stands for.
        craft: tracr's own model, before it turns into arrays.
    """

    parts: tuple[CraftPart, ...]
    labels: tuple[str, ...]
    directions: tuple[Any, ...]
    tokens: Float[Tensor, "vocab d_model"]
    positions: Float[Tensor, "position d_model"]
    output: Float[Tensor, "out d_model"]
    values: tuple[str, ...]
    craft: Any

    @property
    def layers(self) -> int:
        return max(part.site.point.layer for part in self.parts) + 1


def compile_program(program: Any) -> Compiled:
    """Compiles a RASP program by tracr's own steps, up to named matrices: its last step, which
    builds a JAX model, is not needed."""
    rasp_to_graph, nodes = tracr("compiler.rasp_to_graph"), tracr("compiler.nodes")
    bases, rasp = tracr("craft.bases"), tracr("rasp.rasp")
    extracted = rasp_to_graph.extract_rasp_graph(program)
    graph, sink = extracted.graph, extracted.sink
    tracr("compiler.basis_inference").infer_bases(graph, sink, set(LETTERS), LENGTH)
    bos = bases.BasisDirection(rasp.tokens.label, BOS)
    tracr("compiler.expr_to_craft_graph").add_craft_components_to_rasp_graph(
        graph, bos_dir=bos, mlp_exactness=100
    )
    craft = tracr("compiler.craft_graph_to_model").craft_graph_to_model(graph, extracted.sources)
    words = bases.VectorSpaceWithBasis.from_values(rasp.tokens.label, set(VOCABULARY))
    places = bases.VectorSpaceWithBasis.from_values(rasp.indices.label, range(LENGTH))
    output = bases.VectorSpaceWithBasis(sink[nodes.OUTPUT_BASIS])
    whole = bases.join_vector_spaces(craft.residual_space, words, places, output)
    index = {direction: i for i, direction in enumerate(whole.basis)}
    tokens = torch.zeros(len(VOCABULARY), len(index))
    for row, word in enumerate(VOCABULARY):
        tokens[row, index[bases.BasisDirection(rasp.tokens.label, word)]] = 1.0
    if (one := bases.BasisDirection("one")) in index:
        tokens[:, index[one]] = 1.0
    positions = torch.zeros(LENGTH + 1, len(index))  # BOS has no position of its own
    for place in range(LENGTH):
        positions[place + 1, index[bases.BasisDirection(rasp.indices.label, place)]] = 1.0
    read = torch.eye(len(index))[[index[direction] for direction in output.basis]]
    values = tuple(str(d.value) for d in output.basis)
    if not rasp.is_categorical(sink[nodes.EXPR]):  # one direction that holds a number
        read, values = torch.cat((read, torch.zeros_like(read))), ("value", "zero")
    labels = tuple("bos" if d == bos else variable(str(d.name)) for d in whole.basis)
    parts = tuple(_parts(craft, index))
    return Compiled(parts, labels, tuple(whole.basis), tokens, positions, read, values, craft)


def variable(name: str) -> str:
    """The variable behind a direction: tracr numbers them, and adds what selectors need."""
    name = name.removesuffix("_selector_width_attn_output")
    stem, _, number = name.rpartition("_")
    return stem if number.isdigit() else name


def _parts(craft: Any, index: dict[Any, int]) -> Iterator[CraftPart]:
    transformers = tracr("craft.transformers")

    def rows(space: Any) -> Matrix:
        return torch.eye(len(index))[[index[direction] for direction in space.basis]].T

    def matrix(linear: Any) -> Matrix:
        return torch.tensor(linear.matrix, dtype=torch.float32)

    layer, last = -1, "mlp"
    for block in craft.blocks:
        kind = "mlp" if isinstance(block, transformers.MLP) else "attention"
        if kind == "attention" or last == "mlp":
            layer += 1
        last = kind
        if kind == "mlp":
            reads = {"in": rows(block.fst.input_space) @ matrix(block.fst)}
            writes = matrix(block.snd) @ rows(block.snd.output_space).T
            yield CraftPart(Site(Point("mlp", layer)), reads, writes)
            continue
        for head, wired in enumerate(block.as_multi().heads()):
            reads = {
                "q": rows(wired.w_qk.left_space) @ matrix(wired.w_qk),
                "k": rows(wired.w_qk.right_space),
                "v": rows(wired.w_ov.input_space) @ matrix(wired.w_ov),
            }
            writes = rows(wired.w_ov.output_space).T
            yield CraftPart(Site(Point("z", layer), head), reads, writes)
