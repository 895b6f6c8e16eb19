"""Sentiment: one adjective decides whether a sentence is positive or negative.

Made for a sentence encoder (all-MiniLM-L6-v2) with a nearest-centroid readout, see
`unweave.model.probe`: the sentences that the centroids come from have other patterns than these.
"""

from random import Random

from unweave.behaviours.opposites import class_task, opposite
from unweave.behaviours.prompt import Prompt
from unweave.behaviours.words import Words

CLASSES = ("positive", "negative")
TEMPLATES = (
    "The {thing} at the hotel was {adjective}.",
    "Everyone said that the {thing} was {adjective}.",
    "We found the {thing} rather {adjective}.",
    "She called the {thing} a {adjective} one.",
)
NEW = ("3",)
THINGS = """
    food music service room film concert dinner view garden lecture breakfast staff kitchen bar
    tour show wine bed pool party
"""
POSITIVE = """
    good great excellent wonderful perfect lovely fantastic brilliant pleasant amazing beautiful
    nice impressive delightful
"""
NEGATIVE = """
    bad poor terrible awful horrible nasty dreadful disgusting boring ugly disappointing weak sad
    cheap
"""


@class_task("sentiment", model="minilm-sentiment", new_templates=NEW)
def sentiment(words: Words, n: int, rng: Random) -> list[Prompt]:
    """An adjective makes a sentence positive or negative; corrupted, it is opposite."""
    things = words.single(THINGS)
    sides = (words.single(POSITIVE), words.single(NEGATIVE))
    pairs = list(zip(*sides, strict=False))
    prompts = []
    for i in range(n):
        template = i % len(TEMPLATES)
        pair, thing = rng.choice(pairs), rng.choice(things)
        pattern = TEMPLATES[template]
        prompts.append(opposite(pattern, template, CLASSES, "adjective", pair, rng, thing=thing))
    return prompts
