"""Parts for wiring attention by hand: a residual stream of named one-hot spaces, and heads on it.

There are no norms and no MLPs, so every number of a run can be worked out on paper. Four names of
spaces have a meaning: `token` and `position` hold the embedding, `one`, if there, is always 1, and
the logits are `output`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.model.synthetic import Wiring
from unweave.model.weights import Attention, Block, Branch, Embedding, Head, Linear, Network, Stack
from unweave.sites import parse

Matrix = Float[Tensor, "_ _"]  # [d_in, d_out], of any size: a record holds several


@dataclass(frozen=True)
class Spaces:
    """Named parts of the residual stream, one after the other."""

    widths: Mapping[str, int]

    @property
    def width(self) -> int:
        return sum(self.widths.values())

    def at(self, name: str) -> slice:
        """Where a part lies."""
        before = list(self.widths)[: list(self.widths).index(name)]
        start = sum(self.widths[n] for n in before)
        return slice(start, start + self.widths[name])


@dataclass(frozen=True, eq=False)
class WiredHead:
    """What a head reads and writes: by space, a map into (or out of) the head's own dimensions."""

    q: Mapping[str, Matrix] = field(default_factory=dict)
    k: Mapping[str, Matrix] = field(default_factory=dict)
    v: Mapping[str, Matrix] = field(default_factory=dict)
    out: Mapping[str, Matrix] = field(default_factory=dict)


def wired_attention(spaces: Spaces, heads: Sequence[WiredHead], d_head: int) -> Attention:
    """One attention layer with scale 1: the score is q·k itself."""
    width = spaces.width
    parts = {}
    for part in ("q", "k", "v"):
        weight = torch.zeros(len(heads), d_head, width)
        for head, wired in enumerate(heads):
            for space, matrix in getattr(wired, part).items():
                weight[head, : matrix.shape[1], spaces.at(space)] = matrix.T
        parts[part] = Linear(weight)
    out = torch.zeros(width, len(heads), d_head)
    for head, wired in enumerate(heads):
        for space, matrix in wired.out.items():
            out[spaces.at(space), head, : matrix.shape[0]] = matrix.T
    return Attention(
        parts["q"],
        parts["k"],
        parts["v"],
        Linear(out.flatten(1)),
        heads=len(heads),
        kv_heads=len(heads),
        d_head=d_head,
        scale=1.0,
        causal=True,
    )


def wired_network(
    spaces: Spaces,
    layers: Sequence[Sequence[WiredHead]],
    d_head: int,
) -> Network:
    """An attention-only network on one-hot tokens and positions."""
    tokens, positions = one_hot_embedding(spaces)
    blocks = tuple(Block((Branch(wired_attention(spaces, heads, d_head)),)) for heads in layers)
    unembed = torch.zeros(len(tokens), spaces.width)
    unembed[:, spaces.at("output")] = torch.eye(len(tokens))
    stack = Stack(Embedding(tokens, positions=positions), blocks)
    return Network(stack, Head((Linear(unembed),)))


def one_hot_embedding(
    spaces: Spaces,
) -> tuple[Float[Tensor, "vocab d_model"], Float[Tensor, "position d_model"]]:
    """Tokens and positions as unit vectors."""
    vocab, positions = spaces.widths["token"], spaces.widths["position"]
    tokens, positional = torch.zeros(vocab, spaces.width), torch.zeros(positions, spaces.width)
    tokens[:, spaces.at("token")] = torch.eye(vocab)
    positional[:, spaces.at("position")] = torch.eye(positions)
    if "one" in spaces.widths:
        tokens[:, spaces.at("one")] = 1.0
    return tokens, positional


def reading_head(
    spaces: Spaces, position: int, reads: Sequence[str], out: str, sharpness: float, gain: float = 1
) -> WiredHead:
    """A head that attends to one position and writes the sum of what it reads there."""
    key, to_token = torch.zeros(spaces.widths["position"], 1), torch.eye(spaces.widths["token"])
    key[position] = 1.0
    return WiredHead(
        q={"one": torch.full((1, 1), sharpness)},
        k={"position": key},
        v=dict.fromkeys(reads, to_token),
        out={out: gain * to_token},
    )


def bystanders(spaces: Spaces, layers: int) -> list[list[WiredHead]]:
    """Layers with nothing but bystanders, the same in every run."""
    generator = torch.Generator().manual_seed(0)
    return [_bystanders(spaces, generator) for _ in range(layers)]


def _bystanders(spaces: Spaces, generator: torch.Generator) -> list[WiredHead]:
    """Heads that look busy and answer nothing, three kinds of them.

    One mixes tokens into a space that only its like read; one passes on what it finds there; one
    attends everywhere alike and adds a little of every word to the logits, which favours none.
    """

    def noise(space: str, size: int) -> Matrix:
        return torch.randn(spaces.widths[space], size, generator=generator) / 2

    size, vocab = spaces.widths["junk"], spaces.widths["token"]
    first = WiredHead(
        q={"token": noise("token", size), "position": noise("position", size)},
        k={"token": noise("token", size), "position": noise("position", size)},
        v={"token": noise("token", size)},
        out={"junk": torch.randn(size, size, generator=generator)},
    )
    second = WiredHead(
        q={"junk": noise("junk", size)},
        k={"junk": noise("junk", size), "position": noise("position", size)},
        v={"junk": noise("junk", size), "token": noise("token", size)},
        out={"junk": torch.randn(size, size, generator=generator)},
    )
    whisper = WiredHead(v={"token": torch.eye(vocab)}, out={"output": 0.05 * torch.eye(vocab)})
    return [first, second, whisper]


def wirings(
    nodes: str, edges: Sequence[str], zero_nodes: str, zero_edges: Sequence[str]
) -> dict[str, Wiring]:
    """What is needed under each ablation: under zero also what depends on positions alone."""
    found, zero = _wiring(nodes, edges), _wiring(zero_nodes, zero_edges)
    return {"mean": found, "counterfactual": found, "zero": zero}


def _wiring(nodes: str, edges: Sequence[str]) -> Wiring:
    """Reads "a0.h1 a1.h2" and ("a0.h1 a1.h2.k", …)."""
    pairs = [edge.split() for edge in edges]
    return Wiring(
        tuple(parse(name) for name in nodes.split()),
        tuple((parse(up), parse(down)) for up, down in pairs),
    )
