"""DistilBERT: BERT's layout under other names, without token types."""

from unweave.model.architectures import _encoder as encoder
from unweave.model.checkpoint import Architecture, Checkpoint, Tiny, architectures
from unweave.model.weights import Block, Head, Mlp, Network, Stack

_EPS = 1e-12  # fixed in the family's code


def read(c: Checkpoint) -> Network:
    root = c.root("distilbert.")
    heads, activation = c.get("n_heads"), c.activation("activation")
    for field in ("dim", "hidden_dim"):
        c.get(field, None)  # visible from the tensors themselves
    c.get("sinusoidal_pos_embds", None)  # the sinusoids are stored like learned positions

    def block(i: int) -> Block:
        name = f"{root}transformer.layer.{i}"
        parts = ("q_lin", "k_lin", "v_lin", "out_lin")
        mlp = Mlp(c.linear(f"{name}.ffn.lin1"), c.linear(f"{name}.ffn.lin2"), activation)
        body = encoder.attention(c, f"{name}.attention", parts, heads)
        return Block(
            (
                encoder.post_norm(c, body, f"{name}.sa_layer_norm", _EPS),
                encoder.post_norm(c, mlp, f"{name}.output_layer_norm", _EPS),
            )
        )

    embedding = encoder.bert_embedding(c, root, _EPS)
    body = Stack(embedding, tuple(block(i) for i in range(c.get("n_layers"))))

    def masked() -> Head:
        norm = c.norm("vocab_layer_norm", "layer", _EPS)
        transform = (c.linear("vocab_transform"), activation, norm)
        return encoder.masked_lm(c, transform, embedding, "vocab_projector")

    by_class = {
        "DistilBertModel": Head,
        "DistilBertForMaskedLM": masked,
        "DistilBertForSequenceClassification": lambda: encoder.classifier(
            c, "pre_classifier", encoder.RELU, "classifier"
        ),
    }
    return Network(body, encoder.read_head(c, by_class))


_TINY = {
    "vocab_size": 61,
    "dim": 24,
    "hidden_dim": 40,
    "n_layers": 3,
    "n_heads": 4,
    "max_position_embeddings": 32,
    "initializer_range": 0.3,
}
architectures.register("distilbert")(
    Architecture(
        read,
        tiny={
            "base model": Tiny("DistilBertModel", _TINY),
            "masked lm": Tiny("DistilBertForMaskedLM", _TINY),
            "masked lm, untied, relu": Tiny(
                "DistilBertForMaskedLM",
                _TINY | {"tie_word_embeddings": False, "activation": "relu"},
            ),
            "classifier": Tiny("DistilBertForSequenceClassification", _TINY | {"num_labels": 3}),
            "sinusoidal positions": Tiny("DistilBertModel", _TINY | {"sinusoidal_pos_embds": True}),
        },
        wrong={"n_heads": 2},
    )
)
