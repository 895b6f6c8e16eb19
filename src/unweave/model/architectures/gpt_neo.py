"""GPT-Neo: GPT-2 with unscaled scores and, in every other layer, a window of local attention."""

from unweave.errors import UnweaveError
from unweave.model.architectures import _decoder as decoder
from unweave.model.architectures._tiny import decoder_variants
from unweave.model.checkpoint import Architecture, Checkpoint, architectures
from unweave.model.weights import Block, Embedding, Mlp, Network


def read(c: Checkpoint) -> Network:
    root = c.root("transformer.")
    heads, d_model = c.get("num_heads"), c.get("hidden_size")
    eps, activation = c.get("layer_norm_epsilon"), c.activation("activation_function")
    c.get("intermediate_size", None)  # visible from the tensors themselves
    windows = _windows(c)
    c.skip(r".*\.attn\.attention\.(masked_)?bias")

    def block(i: int) -> Block:
        name = f"{root}h.{i}"
        parts = ("q_proj", "k_proj", "v_proj", "out_proj")
        attention = decoder.attention(
            decoder.projections(c, f"{name}.attn.attention", *parts),
            heads,
            d_model // heads,
            scale=1.0,
            window=windows[i],
        )
        mlp = Mlp(c.linear(f"{name}.mlp.c_fc"), c.linear(f"{name}.mlp.c_proj"), activation)
        norms = [c.norm(f"{name}.{part}", "layer", eps) for part in ("ln_1", "ln_2")]
        return decoder.pre_norm_block(attention, mlp, norms)

    embedding = Embedding(c.tensor(f"{root}wte.weight"), positions=c.tensor(f"{root}wpe.weight"))
    blocks, norm = map(block, range(c.get("num_layers"))), c.norm(f"{root}ln_f", "layer", eps)
    return decoder.language_model(c, "GPTNeoModel", embedding, blocks, norm)


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
_VARIANTS = {
    "global and local": {},
    "untied, wide mlp": {"tie_word_embeddings": False, "intermediate_size": 40},
    "global, relu": {"attention_types": [[["global"], 3]], "activation_function": "relu"},
}
architectures.register("gpt_neo")(
    Architecture(read, tiny=decoder_variants("GPTNeo", _TINY, _VARIANTS), wrong={"window_size": 4})
)
