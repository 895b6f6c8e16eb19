"""`wired-composition`: a head moves to the output what another head brought to a position.

A prompt says five different words. The answer is the first of them again.

1. a0.h1 copies the first word to every position, as "brought".
2. a1.h0 attends to the third word and writes what was brought there to the logits. It does not
   read the word that stands there: its value is the other head's output alone (V-composition).
All other heads are bystanders.
"""

from unweave.model.synthetic import BOS, UNKNOWN, SyntheticModel, synthetic_models
from unweave.model.synthetic.wired_induction import GAIN, WORDS
from unweave.model.synthetic.wiring import Spaces, bystanders, reading_head, wired_network, wirings
from unweave.model.weights import Network

VOCABULARY = (BOS, *WORDS, UNKNOWN)
POSITIONS = 2 * len(WORDS) + 2  # random words said twice fit, each of them once
FIRST, THIRD = 1, 3
SHARPNESS = 16.0  # nothing but the first word is brought: a rank sees the smallest rest of others


def network() -> Network:
    vocab = len(VOCABULARY)
    widths = {"token": vocab, "position": POSITIONS, "one": 1, "brought": vocab}
    spaces = Spaces({**widths, "output": vocab, "junk": 8})
    layers = bystanders(spaces, 2)
    layers[0].insert(1, reading_head(spaces, FIRST, ["token"], "brought", SHARPNESS))
    layers[1].insert(0, reading_head(spaces, THIRD, ["brought"], "output", SHARPNESS, GAIN))
    return wired_network(spaces, layers, d_head=vocab)


_HEADS = ("a0.h1", "a1.h0")
_EDGES = ("embed a0.h1.v", "a0.h1 a1.h0.v", "a1.h0 logits")
# Positions and the constant 1 are the same in every prompt.
_POSITIONAL = tuple(f"embed {head}.{part}" for head in _HEADS for part in "qk")
WIRING = wirings(" ".join(_HEADS), _EDGES, " ".join(_HEADS), _POSITIONAL + _EDGES)


@synthetic_models.register("wired-composition")
def wired_composition() -> SyntheticModel:
    return SyntheticModel(network(), VOCABULARY, WIRING)
