"""An encoder without a head as a classifier: nearest centroid of labelled sentences.

A sentence encoder has no classes to explain. With a few labelled sentences it gets them, without
training: μ_c is the mean first hidden state ([CLS]) of the sentences of class c, and

    logit_c = ⟨h, μ_c⟩ − ½‖μ_c‖²

so that the class with the largest logit is the one whose centroid is nearest to h, and a logit
difference is linear in h. Sentence encoders are used with the mean of all hidden states; the first
is one of them, and what is attributed to it has passed through attention.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from unweave.errors import UnweaveError
from unweave.model.model import Model
from unweave.model.weights import Head, Linear

# Sentences of our own, none of which the task `sentiment` uses.
_PATTERNS = (
    "I think it is {}.",
    "What a {} day.",
    "This is {} work.",
    "It was a {} experience for us.",
    "They gave us a {} impression.",
    "My evening was {}.",
)
_WORDS = {
    "negative": "bad poor terrible awful horrible nasty dreadful disgusting lousy miserable",
    "positive": "good great excellent wonderful perfect lovely fantastic superb brilliant pleasant",
}
SENTIMENT = {
    label: tuple(pattern.format(word) for pattern in _PATTERNS for word in words.split())
    for label, words in _WORDS.items()
}


def with_classes(model: Model, examples: Mapping[str, Sequence[str]]) -> Model:
    """The encoder with a head that names the class whose sentences lie nearest.

    Args:
        model: An encoder without an output head.
        examples: Sentences by label, at least one each.

    Raises:
        UnweaveError: When the model is not an encoder, or has a head already.
    """
    if model.family != "encoder" or model.network.head.steps:
        raise UnweaveError(
            f"{model.name} is {model.family} with its own head: classes can be given to an encoder "
            "that has none; load it without its head"
        )
    if len(examples) < 2 or not all(examples.values()):
        raise UnweaveError("expected two labels or more, with at least one sentence each")
    centroids = torch.stack(
        [model.logits(list(texts))[:, 0].mean(0) for texts in examples.values()]
    )
    scores = Linear(centroids, -centroids.square().sum(1) / 2)
    head = Head((scores,), first=True, labels=tuple(examples))
    return replace(model, network=replace(model.network, head=head))
