"""BERT (MiniLM): post-norm encoder, learned positions, token types."""

from unweave.model.architectures import _encoder as encoder
from unweave.model.architectures._tiny import encoder_variants, tiny
from unweave.model.checkpoint import Architecture, Checkpoint, Tiny, architectures
from unweave.model.weights import Embedding, Head, Network, Stack


def read(c: Checkpoint) -> Network:
    root, eps = c.root("bert."), c.get("layer_norm_eps")
    body = Stack(encoder.bert_embedding(c, root, eps), encoder.bert_blocks(c, root))
    by_class = {
        "BertModel": lambda: _no_head(c, root),
        "BertForMaskedLM": lambda: _masked_lm(c, body.embedding, eps),
        "BertForSequenceClassification": lambda: encoder.classifier(
            c, f"{root}pooler.dense", encoder.TANH, "classifier"
        ),
    }
    return Network(body, encoder.read_head(c, by_class))


def _no_head(c: Checkpoint, root: str) -> Head:
    c.skip(rf"{root}pooler\..*")  # not on the way to the hidden states
    return Head()


def _masked_lm(c: Checkpoint, embedding: Embedding, eps: float) -> Head:
    # Pre-training leaves the next-sentence head and its pooler in the file.
    c.skip(r"bert\.pooler\..*|cls\.seq_relationship\..*")
    transform = (
        c.linear("cls.predictions.transform.dense"),
        c.activation("hidden_act"),
        c.norm("cls.predictions.transform.LayerNorm", "layer", eps),
    )
    return encoder.masked_lm(
        c, transform, embedding, "cls.predictions.decoder", "cls.predictions.bias"
    )


_TINY = tiny(max_position_embeddings=32)
architectures.register("bert")(
    Architecture(
        read,
        tiny={
            **encoder_variants("Bert", _TINY),
            "classifier": Tiny(
                "BertForSequenceClassification",
                _TINY | {"id2label": {0: "a", 1: "b", 2: "c"}, "hidden_act": "gelu_new"},
            ),
            "three types, other eps": Tiny(
                "BertModel", _TINY | {"type_vocab_size": 3, "layer_norm_eps": 1e-3}
            ),
        },
        wrong={"layer_norm_eps": 0.1},
    )
)
