"""BART: post-norm encoder-decoder, a norm over the embedding, learned positions from 2."""

from unweave.model.architectures._encoder import (
    attention,
    post_norm,
    stack_tokens,
    unsupported,
    vocabulary,
)
from unweave.model.checkpoint import Architecture, Checkpoint, Tiny, architectures
from unweave.model.weights import Block, Embedding, Head, Mlp, Network, Stack

_EPS = 1e-5  # fixed in the family's code
_PARTS = ("q_proj", "k_proj", "v_proj", "out_proj")
_OFFSET = 2  # the first two rows of the position table are never read


def read(c: Checkpoint) -> Network:
    return bart_network(c, "BartModel", "BartForConditionalGeneration", _OFFSET)


def bart_network(c: Checkpoint, base: str, language_model: str, position_offset: int) -> Network:
    """Both stacks, also of Marian, and the head unless the checkpoint is the base model.

    Args:
        c: The checkpoint.
        base: The transformers class without a head.
        language_model: The transformers class with one.
        position_offset: The row of the position table that the first token takes.
    """
    root = c.root("model.")
    names = ("encoder", "decoder")
    encoder, decoder = (bart_stack(c, root, name, position_offset) for name in names)
    if c.model_class == base:
        return Network(decoder, encoder=encoder)
    if c.model_class == language_model:
        return Network(decoder, bart_head(c, decoder), encoder)
    raise unsupported(c, base, language_model)


def bart_stack(c: Checkpoint, root: str, name: str, position_offset: int) -> Stack:
    """The encoder or decoder, also of Marian, which leaves the norm of the embedding out."""
    for field in ("normalize_before", "add_final_layer_norm", "is_decoder"):
        c.expect(field, False)
    for field in (f"{name}_ffn_dim", "add_bias_logits", "extra_pos_embeddings"):
        c.get(field, None)  # visible from the tensors themselves
    heads, activation = c.get(f"{name}_attention_heads"), c.activation("activation_function")
    d_model, decoder = c.get("d_model"), name == "decoder"

    def block(i: int) -> Block:
        layer = f"{root}{name}.layers.{i}"
        body = attention(c, f"{layer}.self_attn", _PARTS, heads, causal=decoder)
        branches = [post_norm(c, body, f"{layer}.self_attn_layer_norm", _EPS)]
        if decoder:
            cross = attention(c, f"{layer}.encoder_attn", _PARTS, heads, cross=True)
            branches.append(post_norm(c, cross, f"{layer}.encoder_attn_layer_norm", _EPS))
        mlp = Mlp(c.linear(f"{layer}.fc1"), c.linear(f"{layer}.fc2"), activation)
        return Block((*branches, post_norm(c, mlp, f"{layer}.final_layer_norm", _EPS)))

    norm = f"{root}{name}.layernorm_embedding"
    embedding = Embedding(
        stack_tokens(c, root, name),
        scale=d_model**0.5 if c.get("scale_embedding") else 1.0,
        positions=c.tensor(f"{root}{name}.embed_positions.weight"),
        position_offset=position_offset,
        norm=c.norm(norm, "layer", _EPS) if c.has(f"{norm}.") else None,
    )
    return Stack(embedding, tuple(block(i) for i in range(c.get(f"{name}_layers"))))


def bart_head(c: Checkpoint, decoder: Stack) -> Head:
    """The vocabulary, tied to the decoder's embedding or not, with its constant bias."""
    bias = c.maybe("final_logits_bias")
    offset = None if bias is None else bias[0]
    return Head((vocabulary(c, "lm_head", decoder.embedding, offset),))


BART_TINY = {
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
}
architectures.register("bart")(
    Architecture(
        read,
        tiny={
            "tied": Tiny("BartForConditionalGeneration", BART_TINY),
            "untied, relu, scaled embedding": Tiny(
                "BartForConditionalGeneration",
                BART_TINY
                | {
                    "tie_word_embeddings": False,
                    "activation_function": "relu",
                    "scale_embedding": True,
                },
            ),
            "other heads in the decoder": Tiny(
                "BartForConditionalGeneration", BART_TINY | {"decoder_attention_heads": 2}
            ),
            "base model": Tiny("BartModel", BART_TINY),
        },
        wrong={"encoder_attention_heads": 2},
    )
)
