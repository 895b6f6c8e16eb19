"""`wired-suppression`: induction with heads that hold it back, and one that makes it louder.

1. a0.h1 and a1.h2 write the token before, as in `wired-induction`.
2. a2.h0 attends from a token to what followed it before, and copies that to the logits.
3. a2.h3 attends there too, and lowers the logit of what it finds (copy suppression).
4. a3.h1 attends to its own position and adds to the logits what is already there (amplifier);
   a3.h3 does so too and takes some of it away (dampener).
All other heads are bystanders.
"""

import torch

from unweave.model.synthetic import Built, built
from unweave.model.synthetic.wired_induction import (
    GAIN,
    POSITIONS,
    SHARPNESS,
    VOCABULARY,
    wiring_of,
)
from unweave.model.synthetic.wiring import (
    Spaces,
    WiredHead,
    bystanders,
    one_hot_embedding,
    wired_network,
)
from unweave.model.weights import Network

HELD_BACK = 1.5  # of a gain of 4
LOUDER, SOFTER = 0.5, -0.25


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

    def induction(gain: float) -> WiredHead:
        return WiredHead(
            q={"token": SHARPNESS * to_token},
            k={"previous": to_token},
            v={"token": to_token},
            out={"output": gain * to_token},
        )

    def echo(gain: float) -> WiredHead:
        return WiredHead(
            q={"position": SHARPNESS * place},
            k={"position": place},
            v={"output": to_token},
            out={"output": gain * to_token},
        )

    layers = [bystanders(spaces, generator, vocab) for _ in range(4)]
    layers[0].insert(1, shift)
    layers[1].insert(2, previous)
    for layer in layers[2:]:
        layer[2:3] = []  # four heads a layer
    layers[2].insert(0, induction(GAIN))
    layers[2].append(induction(-HELD_BACK))
    layers[3].insert(1, echo(LOUDER))
    layers[3].append(echo(SOFTER))
    tokens, positions = one_hot_embedding(spaces, vocab, POSITIONS)
    return wired_network(spaces, layers, tokens, positions, d_head=max(vocab, POSITIONS))


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
_FOUND = wiring_of("a1.h2 a2.h0 a2.h3 a3.h1 a3.h3", _EDGES)
WIRING = {
    "mean": _FOUND,
    "counterfactual": _FOUND,
    "zero": wiring_of("a0.h1 a1.h2 a2.h0 a2.h3 a3.h1 a3.h3", _POSITIONAL + _EDGES),
}


@built.register("wired-suppression")
def wired_suppression() -> Built:
    return Built(network(), VOCABULARY, WIRING)
