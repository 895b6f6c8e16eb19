"""Models built by code, whose circuit is known because we put it there (`load("wired-…")`)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from unweave.model.weights import Network
from unweave.registry import Registry
from unweave.sites import Site

Edge = tuple[Site, Site]
BOS, UNKNOWN = "<bos>", "<unk>"


@dataclass(frozen=True)
class Wiring:
    """The circuit that was built in.

    Args:
        nodes: What computes the answer.
        edges: (upstream, downstream): a node or `embed`, and a head's input (a1.h0.k), an MLP or
            the logits.
    """

    nodes: tuple[Site, ...]
    edges: tuple[Edge, ...]


@dataclass(frozen=True, eq=False)
class SyntheticModel:
    """A network with its words.

    Args:
        vocabulary: The word of each token id: BOS first, what stands for all other words last.
        wiring: By ablation: a node whose output depends on the position alone equals its mean, and
            so belongs to the circuit under zero ablation only.
    """

    network: Network
    vocabulary: tuple[str, ...]
    wiring: Mapping[str, Wiring] = field(default_factory=dict)


synthetic_models: Registry[Callable[[], SyntheticModel]] = Registry(
    "synthetic model", "unweave.model.synthetic"
)


def tokenizer_parts(vocabulary: tuple[str, ...]) -> dict:
    """A tokenizer that knows whole words, as data for transformers."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    ids = {word: i for i, word in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    special = {"bos_token": BOS, "unk_token": UNKNOWN}
    return {"json": tokenizer.to_str(), "special": special}
