"""`wired-relay`: three heads in a chain, each handing on what it was given and a word of its own.

A prompt says two words in turn, three times each, then others: `A B A B A B …`. The answer is A.

1. a0.h1 copies the first A, as "said once" (all positions; the next head reads it at the second A).
2. a1.h2 adds it to the second A, as "said twice" (read at the third A).
3. a2.h0 adds that to the third A and writes the sum to the logits.
All other heads are bystanders. Only a2.h0 writes to the logits, a1.h2 reaches them through a2.h0
alone and a0.h1 through both: a search that takes the best node of a round needs three rounds, and
faithfulness is ⅓, ⅔ and 1 on the way.
"""

from unweave.model.synthetic import BOS, UNKNOWN, SyntheticModel, synthetic_models
from unweave.model.synthetic.wired_induction import GAIN, SHARPNESS, WORDS
from unweave.model.synthetic.wiring import Spaces, bystanders, reading_head, wired_network, wirings
from unweave.model.weights import Network

VOCABULARY = (BOS, *WORDS, UNKNOWN)
POSITIONS = 12
FIRST, SECOND, THIRD = 1, 3, 5  # where A is said


def network() -> Network:
    vocab = len(VOCABULARY)
    widths = {"token": vocab, "position": POSITIONS, "one": 1, "once": vocab, "twice": vocab}
    spaces = Spaces({**widths, "output": vocab, "junk": 8})
    said_once = reading_head(spaces, FIRST, ["token"], "once", SHARPNESS)
    said_twice = reading_head(spaces, SECOND, ["token", "once"], "twice", SHARPNESS)
    answer = reading_head(spaces, THIRD, ["token", "twice"], "output", SHARPNESS, GAIN)
    layers = bystanders(spaces, 3)
    layers[0].insert(1, said_once)
    layers[1].insert(2, said_twice)
    layers[2].insert(0, answer)
    return wired_network(spaces, layers, d_head=vocab)


_HEADS = ("a0.h1", "a1.h2", "a2.h0")
_EDGES = (
    *(f"embed {head}.v" for head in _HEADS),
    "a0.h1 a1.h2.v",
    "a1.h2 a2.h0.v",
    "a2.h0 logits",
)
# Positions and the constant 1 are the same in every prompt.
_POSITIONAL = tuple(f"embed {head}.{part}" for head in _HEADS for part in "qk")
WIRING = wirings(" ".join(_HEADS), _EDGES, " ".join(_HEADS), _POSITIONAL + _EDGES)


@synthetic_models.register("wired-relay")
def wired_relay() -> SyntheticModel:
    return SyntheticModel(network(), VOCABULARY, WIRING)
