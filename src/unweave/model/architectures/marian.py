"""Marian: BART's layout with sinusoidal positions from 0 and an embedding without a norm."""

from unweave.model.architectures._encoder import unsupported
from unweave.model.architectures.bart import bart_head, bart_stack
from unweave.model.checkpoint import Architecture, Checkpoint, Tiny, architectures
from unweave.model.weights import Network


def read(c: Checkpoint) -> Network:
    root = c.root("model.")
    for field in ("decoder_vocab_size", "share_encoder_decoder_embeddings"):
        c.get(field, None)  # visible from the tensors themselves
    encoder, decoder = (bart_stack(c, root, name, 0) for name in ("encoder", "decoder"))
    match c.model_class:
        case "MarianMTModel":
            return Network(decoder, bart_head(c, decoder), encoder)
        case "MarianModel":
            return Network(decoder, encoder=encoder)
    raise unsupported(c, "MarianModel", "MarianMTModel")


_TINY = {
    "vocab_size": 61,
    "d_model": 24,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 32,
    "init_std": 0.3,
    "scale_embedding": True,
    "pad_token_id": 60,
    "decoder_start_token_id": 60,
}
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
