"""`wired-composition`: a head moves to the output what another head brought to a position.

A prompt says five different words. The answer is the first of them again.

1. a0.h1 copies the first word to every position, as "brought".
2. a1.h0 attends to the third word and writes what was brought there to the logits. It does not
   read the word that stands there: its value is the other head's output alone (V-composition).
All other heads are bystanders.
"""

import torch

from unweave.model.synthetic import BOS, UNKNOWN, SyntheticModel, synthetic_models
from unweave.model.synthetic.wired_induction import GAIN, WORDS, by_ablation, wiring_of
from unweave.model.synthetic.wiring import (
    Spaces,
    WiredHead,
    bystanders,
    one_hot_embedding,
    wired_network,
)
from unweave.model.weights import Network

VOCABULARY = (BOS, *WORDS, UNKNOWN)
POSITIONS = 2 * len(WORDS) + 2  # random words said twice fit, each of them once
FIRST, THIRD = 1, 3
SHARPNESS = 16.0  # nothing but the first word is brought: a rank sees the smallest rest of others


def network() -> Network:
    vocab, generator = len(VOCABULARY), torch.Generator().manual_seed(0)
    widths = {"token": vocab, "position": POSITIONS, "one": 1, "brought": vocab}
    spaces = Spaces({**widths, "output": vocab, "junk": 8})
    to_token = torch.eye(vocab)

    def reader(position: int, reads: str, out: str, gain: float = 1.0) -> WiredHead:
        """Attends to one position and writes what it reads there."""
        key = torch.zeros(POSITIONS, 1)
        key[position] = 1.0
        return WiredHead(
            q={"one": torch.full((1, 1), SHARPNESS)},
            k={"position": key},
            v={reads: to_token},
            out={out: gain * to_token},
        )

    layers = [bystanders(spaces, generator, vocab) for _ in range(2)]
    layers[0].insert(1, reader(FIRST, "token", "brought"))
    layers[1].insert(0, reader(THIRD, "brought", "output", gain=GAIN))
    tokens, positions = one_hot_embedding(spaces, vocab, POSITIONS, constant="one")
    return wired_network(spaces, layers, tokens, positions, d_head=vocab)


_HEADS = ("a0.h1", "a1.h0")
_EDGES = ("embed a0.h1.v", "a0.h1 a1.h0.v", "a1.h0 logits")
# Positions and the constant 1 are the same in every prompt.
_POSITIONAL = tuple(f"embed {head}.{part}" for head in _HEADS for part in "qk")
WIRING = by_ablation(
    wiring_of(" ".join(_HEADS), _EDGES), wiring_of(" ".join(_HEADS), _POSITIONAL + _EDGES)
)


@synthetic_models.register("wired-composition")
def wired_composition() -> SyntheticModel:
    return SyntheticModel(network(), VOCABULARY, WIRING)
