"""T5: pre-norm encoder-decoder, RMSNorm, unscaled attention with a relative position bias."""

from unweave.model import weights as w
from unweave.model.architectures._encoder import attention, stack_tokens, unsupported, vocabulary
from unweave.model.checkpoint import Architecture, Checkpoint, Tiny, architectures

_PARTS = ("q", "k", "v", "o")


def read(c: Checkpoint) -> w.Network:
    for field in ("d_model", "d_kv", "d_ff", "relative_attention_num_buckets"):
        c.get(field, None)  # visible from the tensors themselves
    for field in ("feed_forward_proj", "is_gated_act"):
        c.get(field, None)  # said again by dense_act_fn and the tensors
    decoder_layers = c.get("num_decoder_layers", None) or c.get("num_layers")
    # Old files keep a bias for cross-attention that the model never reads.
    c.skip(r".*\.EncDecAttention\.relative_attention_bias\.weight")
    encoder = _stack(c, "encoder", c.get("num_layers"))
    match c.model_class:
        case "T5ForConditionalGeneration":
            decoder = _stack(c, "decoder", decoder_layers)
            return w.Network(decoder, _head(c, decoder.embedding), encoder)
        case "T5Model":
            return w.Network(_stack(c, "decoder", decoder_layers), encoder=encoder)
        case "T5EncoderModel":
            return w.Network(encoder)
    raise unsupported(c, "T5Model", "T5EncoderModel", "T5ForConditionalGeneration")


def _head(c: Checkpoint, embedding: w.Embedding) -> w.Head:
    output = vocabulary(c, "lm_head", embedding, None)
    # Transformers 5 reports every T5 as tied, and keeps what the file said in another field.
    scaled = c.get("scale_decoder_outputs", c.get("tie_word_embeddings", True))
    return w.Head((c.get("d_model") ** -0.5, output) if scaled else (output,))


def _stack(c: Checkpoint, name: str, layers: int) -> w.Stack:
    heads, eps = c.get("num_heads"), c.get("layer_norm_epsilon")
    decoder = name == "decoder"
    # The first block owns the bias of all blocks.
    bias = w.RelativeBias(
        c.tensor(f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"),
        c.get("relative_attention_max_distance"),
        bidirectional=not decoder,
    )

    def branch(layer: str, body: str) -> w.Branch:
        part = f"{layer}.{body}"
        if body == "SelfAttention":
            record = attention(c, part, _PARTS, heads, 1.0, causal=decoder, bias=bias)
        elif body == "EncDecAttention":
            record = attention(c, part, _PARTS, heads, 1.0, cross=True)
        else:
            record = _mlp(c, part)
        return w.Branch(record, pre=c.norm(f"{layer}.layer_norm", "rms", eps))

    bodies = ("SelfAttention", *(("EncDecAttention",) if decoder else ()), "DenseReluDense")
    blocks = tuple(
        w.Block(tuple(branch(f"{name}.block.{i}.layer.{j}", body) for j, body in enumerate(bodies)))
        for i in range(layers)
    )
    norm = c.norm(f"{name}.final_layer_norm", "rms", eps)
    return w.Stack(w.Embedding(stack_tokens(c, "", name)), blocks, norm)


def _mlp(c: Checkpoint, name: str) -> w.Mlp:
    activation, out = c.activation("dense_act_fn"), c.linear(f"{name}.wo")
    if c.has(f"{name}.wi."):
        return w.Mlp(c.linear(f"{name}.wi"), out, activation)
    return w.Mlp(c.linear(f"{name}.wi_1"), out, activation, gate=c.linear(f"{name}.wi_0"))


_TINY = {
    "vocab_size": 61,
    "d_model": 24,
    "d_kv": 8,
    "d_ff": 40,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
    # Buckets so few and a distance so short that a test's input reaches the last of them.
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 8,
}
architectures.register("t5")(
    Architecture(
        read,
        tiny={
            "relu": Tiny("T5ForConditionalGeneration", _TINY),
            "gated gelu, unscaled head": Tiny(
                "T5ForConditionalGeneration",
                _TINY
                | {
                    "feed_forward_proj": "gated-gelu",
                    "tie_word_embeddings": False,
                    "initializer_factor": 0.5,  # unscaled, logits are large
                },
            ),
            "gated silu, default buckets": Tiny(
                "T5ForConditionalGeneration",
                {k: v for k, v in _TINY.items() if not k.startswith("relative")}
                | {"feed_forward_proj": "gated-silu", "layer_norm_epsilon": 1e-3},
            ),
            "base model": Tiny("T5Model", _TINY),
            "encoder": Tiny("T5EncoderModel", _TINY),
        },
        wrong={"layer_norm_epsilon": 0.1},
    )
)
