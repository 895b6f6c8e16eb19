"""Marian: BART's layout with sinusoidal positions from 0 and an embedding without a norm."""

from unweave.model.architectures.bart import BART_TINY, bart_network
from unweave.model.checkpoint import Architecture, Checkpoint, Tiny, architectures
from unweave.model.weights import Network


def read(c: Checkpoint) -> Network:
    for field in ("decoder_vocab_size", "share_encoder_decoder_embeddings"):
        c.get(field, None)  # visible from the tensors themselves
    return bart_network(c, "MarianModel", "MarianMTModel", 0)


_TINY = BART_TINY | {"scale_embedding": True, "pad_token_id": 60, "decoder_start_token_id": 60}
architectures.register("marian")(
    Architecture(
        read,
        tiny={
            "scaled embedding": Tiny("MarianMTModel", _TINY),
            "swish": Tiny("MarianMTModel", _TINY | {"activation_function": "swish"}),
            "untied": Tiny(
                "MarianMTModel", _TINY | {"tie_word_embeddings": False, "scale_embedding": False}
            ),
            "own vocabulary in the decoder": Tiny(
                "MarianMTModel",
                _TINY | {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 61},
            ),
            "base model": Tiny("MarianModel", _TINY),
        },
        wrong={"encoder_attention_heads": 2},
    )
)
