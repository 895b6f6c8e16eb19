"""`wired-induction`: [A][B] … [A] → [B] by a previous-token head and an induction head.

1. a0.h1 turns each position into the one before it; it depends on positions alone.
2. a1.h2 attends to that position and writes the token there as "what stood before me".
3. a2.h0 attends from a token to where that token stood before, and copies what stands there.
All other heads are bystanders.
"""

import torch

from unweave.model.synthetic import BOS, UNKNOWN, SyntheticModel, synthetic_models
from unweave.model.synthetic.wiring import Spaces, WiredHead, bystanders, wired_network, wirings
from unweave.model.weights import Network

WORDS = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen", "ibis", "jay", "kite", "lark")
VOCABULARY = (BOS, *WORDS, UNKNOWN)
POSITIONS = 16
SHARPNESS = 6.0  # e⁶ to 1 for the key that fits: clear, and far from a saturated softmax
GAIN = 4.0


def copying_spaces() -> Spaces:
    """The residual stream of models that copy what followed a word."""
    vocab = len(VOCABULARY)
    widths = {"token": vocab, "position": POSITIONS, "before": POSITIONS, "previous": vocab}
    return Spaces({**widths, "output": vocab, "junk": 8})


def shift_head() -> WiredHead:
    """Turns each position into the one before it."""
    place = torch.eye(POSITIONS)
    return WiredHead(
        q={"position": SHARPNESS * place},
        k={"position": place},
        v={"position": place},
        out={"before": torch.diag(torch.ones(POSITIONS - 1), -1)},  # p → p − 1
    )


def previous_head() -> WiredHead:
    """Writes the token at that position."""
    place, to_token = torch.eye(POSITIONS), torch.eye(len(VOCABULARY))
    return WiredHead(
        q={"before": SHARPNESS * place},
        k={"position": place},
        v={"token": to_token},
        out={"previous": to_token},
    )


def induction_head(gain: float) -> WiredHead:
    """Attends from a token to where it stood before, and copies what stands there."""
    to_token = torch.eye(len(VOCABULARY))
    return WiredHead(
        q={"token": SHARPNESS * to_token},
        k={"previous": to_token},
        v={"token": to_token},
        out={"output": gain * to_token},
    )


def copying_network(spaces: Spaces, layers: list[list[WiredHead]]) -> Network:
    """The network of these layers, whose heads have room for a token or a position."""
    return wired_network(spaces, layers, d_head=max(len(VOCABULARY), POSITIONS))


def network() -> Network:
    spaces = copying_spaces()
    layers = bystanders(spaces, 3)
    layers[0].insert(1, shift_head())
    layers[1].insert(2, previous_head())
    layers[2].insert(0, induction_head(GAIN))
    return copying_network(spaces, layers)


_EDGES = (
    "embed a1.h2.v",
    "a1.h2 a2.h0.k",
    "embed a2.h0.q",
    "embed a2.h0.v",
    "a2.h0 logits",
)
# Positions, and what is computed from them alone, are the same in every prompt of a length.
_POSITIONAL = ("embed a0.h1.q", "embed a0.h1.k", "embed a0.h1.v", "a0.h1 a1.h2.q", "embed a1.h2.k")
WIRING = wirings("a1.h2 a2.h0", _EDGES, "a0.h1 a1.h2 a2.h0", _POSITIONAL + _EDGES)


@synthetic_models.register("wired-induction")
def wired_induction() -> SyntheticModel:
    return SyntheticModel(network(), VOCABULARY, WIRING)
