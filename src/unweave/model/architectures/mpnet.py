"""MPNet: BERT's layout with one relative position bias, shared by all layers; no token types."""

from unweave.model.architectures import _encoder as encoder
from unweave.model.architectures._tiny import encoder_variants, tiny
from unweave.model.checkpoint import Architecture, Checkpoint, architectures
from unweave.model.weights import Block, Network, RelativeBias, Stack

# Fixed in the family's code, whatever the config says.
_PADDING, _BUCKETS, _MAX_DISTANCE = 1, 32, 128


def read(c: Checkpoint) -> Network:
    root = c.root("mpnet.")
    heads, eps = c.get("num_attention_heads"), c.get("layer_norm_eps")
    activation = c.activation("hidden_act")
    for field in ("hidden_size", "intermediate_size"):
        c.get(field, None)  # visible from the tensors themselves
    c.expect("relative_attention_num_buckets", _BUCKETS)
    table = c.tensor(f"{root}encoder.relative_attention_bias.weight")
    bias = RelativeBias(table, _MAX_DISTANCE, bidirectional=True)

    def block(i: int) -> Block:
        name = f"{root}encoder.layer.{i}"
        body = encoder.attention(
            c, f"{name}.attention.attn", ("q", "k", "v", "o"), heads, bias=bias
        )
        return Block(
            (
                encoder.post_norm(c, body, f"{name}.attention.LayerNorm", eps),
                encoder.bert_mlp(c, name, eps, activation),
            )
        )

    embedding = encoder.bert_embedding(c, root, eps, position_offset=_PADDING + 1)
    body = Stack(embedding, tuple(block(i) for i in range(c.get("num_hidden_layers"))))
    return Network(body, encoder.roberta_head(c, "MPNet", root, embedding, eps))


_TINY = tiny(max_position_embeddings=40)
architectures.register("mpnet")(
    Architecture(
        read,
        tiny=encoder_variants("MPNet", _TINY),
        wrong={"layer_norm_eps": 0.1},
    )
)
