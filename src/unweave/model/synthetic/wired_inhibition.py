"""`wired-inhibition`: of two names, the one that is not said twice, as in IOI.

1. a0.h0 flags a token that was there before (duplicate token), else it rests on BOS.
2. a0.h3 marks the end of the prompt; it depends on positions alone.
3. a1.h1 attends from the marked end to the flag and writes the name there as "inhibited".
4. a2.h2 attends to names except the inhibited one and copies what it finds to the logits.
All other heads are bystanders.
"""

import torch

from unweave.model.synthetic import BOS, UNKNOWN, SyntheticModel, synthetic_models
from unweave.model.synthetic.wiring import Spaces, WiredHead, bystanders, wired_network, wirings
from unweave.model.weights import Network

NAMES = ("Ann", "Bob", "Cat", "Dan", "Eve", "Fay", "Gus", "Hal", "Ivy", "Jim", "Kim", "Leo")
OTHERS = ("met", "then", "gave", "it", "to")
VOCABULARY = (BOS, *NAMES, *OTHERS, UNKNOWN)
POSITIONS = 12
END = 8  # <bos> A met B then S gave it to
SHARPNESS, GAIN = 8.0, 4.0


def network() -> Network:
    vocab = len(VOCABULARY)
    widths = {"token": vocab, "position": POSITIONS, "one": 1, "flag": 1, "end": 1}
    spaces = Spaces({**widths, "inhibited": vocab, "output": vocab, "junk": 8})
    to_token, one = torch.eye(vocab), torch.ones(1, 1)
    at_end, is_bos, is_name = (torch.zeros(size, 1) for size in (POSITIONS, vocab, vocab))
    at_end[END], is_bos[0], is_name[1 : len(NAMES) + 1] = 1.0, 1.0, 1.0

    def beside(*parts: torch.Tensor | int) -> torch.Tensor:
        """Maps side by side in the head's dimensions; a number leaves this many empty."""
        rows = next(len(part) for part in parts if isinstance(part, torch.Tensor))
        return torch.cat([torch.zeros(rows, p) if isinstance(p, int) else p for p in parts], 1)

    # Score of a key: 1 for the same token, less 2 for the same position, ½ for BOS; times 8.
    duplicate = WiredHead(
        q={
            "token": SHARPNESS * to_token,
            "position": beside(vocab, -2 * SHARPNESS * torch.eye(POSITIONS)),
            "one": beside(vocab + POSITIONS, SHARPNESS / 2 * one),
        },
        k={
            "token": beside(to_token, POSITIONS, is_bos),
            "position": beside(vocab, torch.eye(POSITIONS)),
        },
        v={"token": 1 - is_bos},
        out={"flag": one},
    )
    marker = WiredHead(
        q={"position": SHARPNESS * torch.eye(POSITIONS)},
        k={"position": torch.eye(POSITIONS)},
        v={"position": at_end},
        out={"end": one},
    )
    inhibition = WiredHead(
        q={"end": SHARPNESS * one},
        k={"flag": one},
        v={"token": to_token},
        out={"inhibited": to_token},
    )
    mover = WiredHead(
        q={"inhibited": -2 * SHARPNESS * to_token, "one": beside(vocab, SHARPNESS * one)},
        k={"token": beside(to_token, is_name)},
        v={"token": to_token},
        out={"output": GAIN * to_token},
    )
    layers = bystanders(spaces, 3)
    layers[0][1:2] = []  # four heads a layer
    layers[0].insert(0, duplicate)
    layers[0].append(marker)
    layers[1].insert(1, inhibition)
    layers[2].insert(2, mover)
    return wired_network(spaces, layers, d_head=vocab + POSITIONS + 1)


_EDGES = (
    "embed a0.h0.q",
    "embed a0.h0.k",
    "a0.h0 a1.h1.k",
    "embed a1.h1.v",
    "a1.h1 a2.h2.q",
    "embed a2.h2.k",
    "embed a2.h2.v",
    "a2.h2 logits",
)
_POSITIONAL = (
    "embed a0.h0.v",  # 1 for every token but BOS, which is always the first
    "embed a0.h3.q",
    "embed a0.h3.k",
    "embed a0.h3.v",
    "a0.h3 a1.h1.q",
    "embed a2.h2.q",  # the constant 1
)
WIRING = wirings("a0.h0 a1.h1 a2.h2", _EDGES, "a0.h0 a0.h3 a1.h1 a2.h2", _EDGES + _POSITIONAL)


@synthetic_models.register("wired-inhibition")
def wired_inhibition() -> SyntheticModel:
    return SyntheticModel(network(), VOCABULARY, WIRING)
