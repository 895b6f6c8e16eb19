"""Parts for wiring attention by hand: a residual stream of named one-hot spaces, and heads on it.

There are no norms and no MLPs, so every number of a run can be worked out on paper.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.model.weights import Attention, Block, Branch, Embedding, Head, Linear, Network, Stack

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
    tokens: Float[Tensor, "vocab d_model"],
    positions: Float[Tensor, "position d_model"],
    d_head: int,
) -> Network:
    """An attention-only network whose logits are the space `output`."""
    blocks = tuple(Block((Branch(wired_attention(spaces, heads, d_head)),)) for heads in layers)
    unembed = torch.zeros(len(tokens), spaces.width)
    unembed[:, spaces.at("output")] = torch.eye(len(tokens))
    stack = Stack(Embedding(tokens, positions=positions), blocks)
    return Network(stack, Head((Linear(unembed),)))


def one_hot_embedding(
    spaces: Spaces, vocab: int, positions: int, constant: str | None = None
) -> tuple[Float[Tensor, "vocab d_model"], Float[Tensor, "position d_model"]]:
    """Tokens and positions as unit vectors; `constant` is a space of width 1 that is always 1."""
    tokens, positional = torch.zeros(vocab, spaces.width), torch.zeros(positions, spaces.width)
    tokens[:, spaces.at("token")] = torch.eye(vocab)
    positional[:, spaces.at("position")] = torch.eye(positions)
    if constant is not None:
        tokens[:, spaces.at(constant)] = 1.0
    return tokens, positional


def bystanders(spaces: Spaces, generator: torch.Generator, vocab: int) -> list[WiredHead]:
    """Heads that look busy and answer nothing, three kinds of them.

    One mixes tokens into a space that only its like read; one passes on what it finds there; one
    attends everywhere alike and adds a little of every word to the logits, which favours none.
    """

    def noise(space: str, size: int) -> Matrix:
        return torch.randn(spaces.widths[space], size, generator=generator) / 2

    size = spaces.widths["junk"]
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
