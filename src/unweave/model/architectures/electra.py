"""ELECTRA: BERT with a narrow embedding that is projected up, as generator or discriminator."""

from unweave.model.architectures import _encoder as encoder
from unweave.model.architectures._tiny import encoder_variants, tiny
from unweave.model.checkpoint import Architecture, Checkpoint, Tiny, architectures
from unweave.model.weights import Head, Network, Stack


def read(c: Checkpoint) -> Network:
    root, eps = c.root("electra."), c.get("layer_norm_eps")
    c.get("embedding_size", None)  # visible from the tensors themselves
    project = f"{root}embeddings_project"
    projection = c.linear(project) if c.has(f"{project}.") else None
    embedding = encoder.bert_embedding(c, root, eps, projection=projection)
    body = Stack(embedding, encoder.bert_blocks(c, root))

    def generator() -> Head:
        name = "generator_predictions"
        transform = (
            c.linear(f"{name}.dense"),
            encoder.GELU,
            c.norm(f"{name}.LayerNorm", "layer", eps),
        )
        return encoder.masked_lm(c, transform, embedding, "generator_lm_head")

    def discriminator() -> Head:
        name = "discriminator_predictions"
        score = c.linear(f"{name}.dense_prediction")
        return Head((c.linear(f"{name}.dense"), c.activation("hidden_act"), score))

    by_class = {
        "ElectraModel": Head,
        "ElectraForMaskedLM": generator,
        "ElectraForPreTraining": discriminator,
        "ElectraForSequenceClassification": lambda: encoder.classifier(
            c, "classifier.dense", encoder.GELU, "classifier.out_proj"
        ),
    }
    return Network(body, encoder.read_head(c, by_class))


_TINY = tiny(embedding_size=16, max_position_embeddings=32)
architectures.register("electra")(
    Architecture(
        read,
        tiny={
            **encoder_variants("Electra", _TINY),
            "wide embedding": Tiny("ElectraModel", _TINY | {"embedding_size": 24}),
            "discriminator": Tiny("ElectraForPreTraining", _TINY),
        },
        wrong={"layer_norm_eps": 0.1},
    )
)
