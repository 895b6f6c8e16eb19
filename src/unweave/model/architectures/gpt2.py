"""GPT-2: pre-norm, learned positions, fused qkv stored transposed."""

from unweave.model.architectures import _decoder as decoder
from unweave.model.architectures._tiny import decoder_variants
from unweave.model.checkpoint import Architecture, Checkpoint, architectures
from unweave.model.weights import Block, Embedding, Mlp, Network


def read(c: Checkpoint) -> Network:
    root = c.root("transformer.")
    heads, d_model = c.get("n_head"), c.get("n_embd")
    d_head = d_model // heads
    eps, activation = c.get("layer_norm_epsilon"), c.activation("activation_function")
    c.get("n_inner")
    scale_weights, by_layer = c.get("scale_attn_weights"), c.get("scale_attn_by_inverse_layer_idx")
    c.get("reorder_and_upcast_attn")  # changes precision only
    c.expect("add_cross_attention", False)
    c.skip(r".*\.attn\.(masked_)?bias")

    def block(i: int) -> Block:
        name = f"{root}h.{i}"
        projections = (
            *c.fused(f"{name}.attn.c_attn", (d_model,) * 3, transposed=True),
            c.linear(f"{name}.attn.c_proj", transposed=True),
        )
        scale = d_head**-0.5 if scale_weights else 1.0
        scale = scale / (i + 1) if by_layer else scale
        mlp = Mlp(
            c.linear(f"{name}.mlp.c_fc", transposed=True),
            c.linear(f"{name}.mlp.c_proj", transposed=True),
            activation,
        )
        norms = [c.norm(f"{name}.{part}", "layer", eps) for part in ("ln_1", "ln_2")]
        attention = decoder.attention(projections, heads, d_head, scale=scale)
        return decoder.pre_norm_block(attention, mlp, norms)

    embedding = Embedding(c.tensor(f"{root}wte.weight"), positions=c.tensor(f"{root}wpe.weight"))
    blocks, norm = map(block, range(c.get("n_layer"))), c.norm(f"{root}ln_f", "layer", eps)
    return decoder.language_model(c, "GPT2Model", embedding, blocks, norm)


_TINY = {
    "vocab_size": 61,
    "n_embd": 24,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 32,
    "initializer_range": 0.3,
}
_VARIANTS = {
    "default": {},
    "untied, wide mlp": {"tie_word_embeddings": False, "n_inner": 40},
    "scale by layer": {"scale_attn_by_inverse_layer_idx": True, "activation_function": "relu"},
}
architectures.register("gpt2")(
    Architecture(
        read,
        tiny=decoder_variants("GPT2", _TINY, _VARIANTS, "LMHeadModel"),
        wrong={"layer_norm_epsilon": 0.1},
    )
)
