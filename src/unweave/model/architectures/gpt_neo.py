"""GPT-Neo: GPT-2 with unscaled scores and, in every other layer, a window of local attention."""

from unweave.errors import UnweaveError
from unweave.model.checkpoint import Architecture, Checkpoint, Tiny, architectures
from unweave.model.weights import (
    Attention,
    Block,
    Branch,
    Embedding,
    Head,
    Linear,
    Mlp,
    Network,
    Stack,
)


def read(c: Checkpoint) -> Network:
    root = c.root("transformer.")
    heads, d_model = c.get("num_heads"), c.get("hidden_size")
    eps, activation = c.get("layer_norm_epsilon"), c.activation("activation_function")
    c.get("intermediate_size", None)  # visible from the tensors themselves
    windows = _windows(c)
    c.skip(r".*\.attn\.attention\.(masked_)?bias")

    def block(i: int) -> Block:
        name = f"{root}h.{i}"
        attention = Attention(
            c.linear(f"{name}.attn.attention.q_proj"),
            c.linear(f"{name}.attn.attention.k_proj"),
            c.linear(f"{name}.attn.attention.v_proj"),
            c.linear(f"{name}.attn.attention.out_proj"),
            heads=heads,
            kv_heads=heads,
            d_head=d_model // heads,
            scale=1.0,
            causal=True,
            window=windows[i],
        )
        mlp = Mlp(c.linear(f"{name}.mlp.c_fc"), c.linear(f"{name}.mlp.c_proj"), activation)
        return Block(
            (
                Branch(attention, pre=c.norm(f"{name}.ln_1", "layer", eps)),
                Branch(mlp, pre=c.norm(f"{name}.ln_2", "layer", eps)),
            )
        )

    tokens = c.tensor(f"{root}wte.weight")
    body = Stack(
        Embedding(tokens, positions=c.tensor(f"{root}wpe.weight")),
        tuple(block(i) for i in range(c.get("num_layers"))),
        c.norm(f"{root}ln_f", "layer", eps),
    )
    if c.model_class == "GPTNeoModel":
        return Network(body)
    unembed = c.maybe("lm_head.weight")
    return Network(body, Head((Linear(tokens if unembed is None else unembed),)))


def _windows(c: Checkpoint) -> list[int | None]:
    """One window a layer, from `[[["global", "local"], 6]]`: a pattern and how often it repeats."""
    c.get("attention_layers", None)  # the same, written out by transformers
    size = {"global": None, "local": c.get("window_size")}
    kinds = [kind for pattern, times in c.get("attention_types") for kind in pattern * times]
    if unknown := set(kinds) - set(size):
        raise UnweaveError(
            f"attention_types names {', '.join(sorted(unknown))}: expected global or local"
        )
    return [size[kind] for kind in kinds]


_TINY = {
    "vocab_size": 61,
    "hidden_size": 24,
    "num_layers": 3,
    "num_heads": 4,
    "max_position_embeddings": 32,
    "attention_types": [[["global", "local", "local"], 1]],
    "window_size": 3,
    "initializer_range": 0.3,
}
architectures.register("gpt_neo")(
    Architecture(
        read,
        tiny={
            "global and local": Tiny("GPTNeoForCausalLM", _TINY),
            "base model": Tiny("GPTNeoModel", _TINY),
            "untied, wide mlp": Tiny(
                "GPTNeoForCausalLM", _TINY | {"tie_word_embeddings": False, "intermediate_size": 40}
            ),
            "global, relu": Tiny(
                "GPTNeoForCausalLM",
                _TINY | {"attention_types": [[["global"], 3]], "activation_function": "relu"},
            ),
        },
        wrong={"window_size": 4},
    )
)
