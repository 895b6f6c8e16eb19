"""GPT-J: attention and MLP in parallel from one norm, rotary on interleaved pairs, a head bias."""

from dataclasses import replace

from unweave.model.architectures import _decoder as decoder
from unweave.model.architectures._tiny import decoder_variants
from unweave.model.checkpoint import Architecture, Checkpoint, architectures
from unweave.model.positions import rotary_of
from unweave.model.weights import Block, Embedding, Mlp, Network


def read(c: Checkpoint) -> Network:
    root = c.root("transformer.")
    heads, d_model = c.get("n_head"), c.get("n_embd")
    eps, activation = c.get("layer_norm_epsilon"), c.activation("activation_function")
    c.get("n_inner")  # visible from the tensors themselves
    # In the published configs, though transformers no longer reads them.
    c.expect("rotary", True)
    c.expect("scale_attn_weights", True)
    c.skip(r".*\.attn\.(masked_)?bias")
    rotary = rotary_of({"rope_theta": 10000.0}, c.get("rotary_dim"), None)
    rotary = replace(rotary, interleaved=True)

    def block(i: int) -> Block:
        name = f"{root}h.{i}"
        parts = ("q_proj", "k_proj", "v_proj", "out_proj")
        attention = decoder.attention(
            decoder.projections(c, f"{name}.attn", *parts), heads, d_model // heads, rotary=rotary
        )
        mlp = Mlp(c.linear(f"{name}.mlp.fc_in"), c.linear(f"{name}.mlp.fc_out"), activation)
        return decoder.parallel_block(attention, mlp, c.norm(f"{name}.ln_1", "layer", eps))

    embedding = Embedding(c.tensor(f"{root}wte.weight"))
    blocks, norm = map(block, range(c.get("n_layer"))), c.norm(f"{root}ln_f", "layer", eps)
    return decoder.language_model(c, "GPTJModel", embedding, blocks, norm, bias=True)


_TINY = {
    "vocab_size": 61,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 32,
    "rotary_dim": 4,
    "initializer_range": 0.3,
}
_VARIANTS = {
    "partial rotary": {},
    "full rotary, tied": {"rotary_dim": 8, "tie_word_embeddings": True},
    "narrow mlp, relu": {"n_inner": 40, "activation_function": "relu"},
}
architectures.register("gptj")(
    Architecture(read, tiny=decoder_variants("GPTJ", _TINY, _VARIANTS), wrong={"rotary_dim": 6})
)
