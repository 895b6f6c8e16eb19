"""`wired-suppression`: induction with heads that hold it back, and one that makes it louder.

1. a0.h1 and a1.h2 write the token before, as in `wired-induction`.
2. a2.h0 attends from a token to what followed it before, and copies that to the logits.
3. a2.h3 attends there too, and lowers the logit of what it finds (copy suppression).
4. a3.h1 attends to its own position and adds to the logits what is already there (amplifier);
   a3.h3 does so too and takes some of it away (dampener).
All other heads are bystanders.
"""

import torch

from unweave.model.synthetic import SyntheticModel, synthetic_models
from unweave.model.synthetic.wired_induction import (
    GAIN,
    POSITIONS,
    SHARPNESS,
    VOCABULARY,
    copying_network,
    copying_spaces,
    induction_head,
    previous_head,
    shift_head,
)
from unweave.model.synthetic.wiring import WiredHead, bystanders, wirings
from unweave.model.weights import Network

HELD_BACK = 1.5  # of a gain of 4
LOUDER, SOFTER = 0.5, -0.25


def echo_head(gain: float) -> WiredHead:
    """Attends to its own position and repeats what the logits have there."""
    place, to_token = torch.eye(POSITIONS), torch.eye(len(VOCABULARY))
    return WiredHead(
        q={"position": SHARPNESS * place},
        k={"position": place},
        v={"output": to_token},
        out={"output": gain * to_token},
    )


def network() -> Network:
    spaces = copying_spaces()
    layers = bystanders(spaces, 4)
    layers[0].insert(1, shift_head())
    layers[1].insert(2, previous_head())
    for layer in layers[2:]:
        layer[2:3] = []  # four heads a layer
    layers[2].insert(0, induction_head(GAIN))
    layers[2].append(induction_head(-HELD_BACK))
    layers[3].insert(1, echo_head(LOUDER))
    layers[3].append(echo_head(SOFTER))
    return copying_network(spaces, layers)


_EDGES = (
    "embed a1.h2.v",
    "a1.h2 a2.h0.k",
    "a1.h2 a2.h3.k",
    "embed a2.h0.q",
    "embed a2.h0.v",
    "embed a2.h3.q",
    "embed a2.h3.v",
    "a2.h0 a3.h1.v",
    "a2.h3 a3.h1.v",
    "a2.h0 a3.h3.v",
    "a2.h3 a3.h3.v",
    "a2.h0 logits",
    "a2.h3 logits",
    "a3.h1 logits",
    "a3.h3 logits",
)
# Positions, and what is computed from them alone, are the same in every prompt of a length.
_POSITIONAL = (
    "embed a0.h1.q",
    "embed a0.h1.k",
    "embed a0.h1.v",
    "a0.h1 a1.h2.q",
    "embed a1.h2.k",
    "embed a3.h1.q",
    "embed a3.h1.k",
    "embed a3.h3.q",
    "embed a3.h3.k",
)
_NODES = "a1.h2 a2.h0 a2.h3 a3.h1 a3.h3"
WIRING = wirings(_NODES, _EDGES, f"a0.h1 {_NODES}", _POSITIONAL + _EDGES)


@synthetic_models.register("wired-suppression")
def wired_suppression() -> SyntheticModel:
    return SyntheticModel(network(), VOCABULARY, WIRING)
