"""`wired-induction`: [A][B] … [A] → [B] by a previous-token head and an induction head.

1. a0.h1 turns each position into the one before it; it depends on positions alone.
2. a1.h2 attends to that position and writes the token there as "what stood before me".
3. a2.h0 attends from a token to where that token stood before, and copies what stands there.
All other heads are bystanders.
"""

import torch

from unweave.model.synthetic import BOS, UNKNOWN, Built, Wiring, built
from unweave.model.synthetic.wiring import (
    Spaces,
    WiredHead,
    bystanders,
    one_hot_embedding,
    wired_network,
)
from unweave.model.weights import Network
from unweave.sites import parse

WORDS = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen", "ibis", "jay", "kite", "lark")
VOCABULARY = (BOS, *WORDS, UNKNOWN)
POSITIONS = 16
SHARPNESS = 6.0  # e⁶ to 1 for the key that fits: clear, and far from a saturated softmax
GAIN = 4.0


def network() -> Network:
    vocab, generator = len(VOCABULARY), torch.Generator().manual_seed(0)
    widths = {"token": vocab, "position": POSITIONS, "before": POSITIONS, "previous": vocab}
    spaces = Spaces({**widths, "output": vocab, "junk": 8})
    to_token, place = torch.eye(vocab), torch.eye(POSITIONS)
    shift = WiredHead(
        q={"position": SHARPNESS * place},
        k={"position": place},
        v={"position": place},
        out={"before": torch.diag(torch.ones(POSITIONS - 1), -1)},  # p → p − 1
    )
    previous = WiredHead(
        q={"before": SHARPNESS * place},
        k={"position": place},
        v={"token": to_token},
        out={"previous": to_token},
    )
    induction = WiredHead(
        q={"token": SHARPNESS * to_token},
        k={"previous": to_token},
        v={"token": to_token},
        out={"output": GAIN * to_token},
    )
    layers = [bystanders(spaces, generator, vocab) for _ in range(3)]
    layers[0].insert(1, shift)
    layers[1].insert(2, previous)
    layers[2].insert(0, induction)
    tokens, positions = one_hot_embedding(spaces, vocab, POSITIONS)
    return wired_network(spaces, layers, tokens, positions, d_head=max(vocab, POSITIONS))


_EDGES = (
    "embed a1.h2.v",
    "a1.h2 a2.h0.k",
    "embed a2.h0.q",
    "embed a2.h0.v",
    "a2.h0 logits",
)
# Positions, and what is computed from them alone, are the same in every prompt of a length.
_POSITIONAL = ("embed a0.h1.q", "embed a0.h1.k", "embed a0.h1.v", "a0.h1 a1.h2.q", "embed a1.h2.k")


def wiring_of(nodes: str, edges: tuple[str, ...]) -> Wiring:
    pairs = [edge.split() for edge in edges]
    return Wiring(
        tuple(parse(name) for name in nodes.split()),
        tuple((parse(up), parse(down)) for up, down in pairs),
    )


_FOUND = wiring_of("a1.h2 a2.h0", _EDGES)
WIRING = {
    "mean": _FOUND,
    "counterfactual": _FOUND,
    "zero": wiring_of("a0.h1 a1.h2 a2.h0", _POSITIONAL + _EDGES),
}


@built.register("wired-induction")
def wired_induction() -> Built:
    return Built(network(), VOCABULARY, WIRING)
