"""OPT: learned positions from row 2 on, norms before or after, maybe narrower embeddings."""

from unweave.model import weights as w
from unweave.model.architectures import _decoder as decoder
from unweave.model.architectures._encoder import vocabulary
from unweave.model.checkpoint import Architecture, Checkpoint, Tiny, architectures

_EPS = 1e-5  # not in the config
_POSITION_OFFSET = 2  # the first rows belonged to padding


def read(c: Checkpoint) -> w.Network:
    root = f"{c.root('model.')}decoder."
    heads, d_model = c.get("num_attention_heads"), c.get("hidden_size")
    before, activation = c.get("do_layer_norm_before"), c.activation("activation_function")
    for field in ("ffn_dim", "enable_bias"):
        c.get(field, None)  # visible from the tensors themselves
    learned = c.get("layer_norm_elementwise_affine", True)

    def layer_norm(name: str) -> w.Norm:
        return c.norm(name, "layer", _EPS, learned=learned)

    def branch(body: w.Attention | w.Mlp, norm: w.Norm) -> w.Branch:
        return w.Branch(body, pre=norm) if before else w.Branch(body, after=norm)

    def block(i: int) -> w.Block:
        name = f"{root}layers.{i}"
        parts = ("q_proj", "k_proj", "v_proj", "out_proj")
        attention = decoder.attention(
            decoder.projections(c, f"{name}.self_attn", *parts), heads, d_model // heads
        )
        mlp = w.Mlp(c.linear(f"{name}.fc1"), c.linear(f"{name}.fc2"), activation)
        return w.Block(
            (
                branch(attention, layer_norm(f"{name}.self_attn_layer_norm")),
                branch(mlp, layer_norm(f"{name}.final_layer_norm")),
            )
        )

    narrow = c.get("word_embed_proj_dim") != d_model
    embedding = w.Embedding(
        c.tensor(f"{root}embed_tokens.weight"),
        token_projection=c.linear(f"{root}project_in") if narrow else None,
        positions=c.tensor(f"{root}embed_positions.weight"),
        position_offset=_POSITION_OFFSET,
    )
    blocks = tuple(block(i) for i in range(c.get("num_hidden_layers")))
    final = before and not c.get("_remove_final_layer_norm", False)
    norm = layer_norm(f"{root}final_layer_norm") if final else None
    steps = (c.linear(f"{root}project_out"),) if narrow else ()
    if c.model_class != "OPTModel":
        steps = (*steps, vocabulary(c, "lm_head", embedding, None))
    return w.Network(w.Stack(embedding, blocks, norm), w.Head(steps))


_TINY = {
    "vocab_size": 61,
    "hidden_size": 24,
    "ffn_dim": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "init_std": 0.3,
}
architectures.register("opt")(
    Architecture(
        read,
        tiny={
            "norm before": Tiny("OPTForCausalLM", _TINY),
            "base model": Tiny("OPTModel", _TINY),
            "norm after, narrow embedding": Tiny(
                "OPTForCausalLM",
                _TINY | {"do_layer_norm_before": False, "word_embed_proj_dim": 16},
            ),
            "narrow base model": Tiny("OPTModel", _TINY | {"word_embed_proj_dim": 16}),
            "no biases, untied": Tiny(
                "OPTForCausalLM", _TINY | {"enable_bias": False, "tie_word_embeddings": False}
            ),
            "plain norms, no final norm, gelu": Tiny(
                "OPTForCausalLM",
                _TINY
                | {
                    "layer_norm_elementwise_affine": False,
                    "_remove_final_layer_norm": True,
                    "activation_function": "gelu",
                    "init_std": 0.2,  # without a final norm logits are larger
                },
            ),
        },
        wrong={"num_attention_heads": 3},
    )
)
