"""ELECTRA: BERT with a narrow embedding that is projected up, as generator or discriminator."""

from unweave.model.architectures._encoder import (
    GELU,
    bert_blocks,
    bert_embedding,
    classifier,
    masked_lm,
    read_head,
)
from unweave.model.architectures._tiny import tiny
from unweave.model.checkpoint import Architecture, Checkpoint, Tiny, architectures
from unweave.model.weights import Head, Network, Stack


def read(c: Checkpoint) -> Network:
    root, eps = c.root("electra."), c.get("layer_norm_eps")
    c.get("embedding_size", None)  # visible from the tensors themselves
    project = f"{root}embeddings_project"
    projection = c.linear(project) if c.has(f"{project}.") else None
    embedding = bert_embedding(c, root, eps, projection=projection)
    body = Stack(embedding, bert_blocks(c, root))

    def generator() -> Head:
        name = "generator_predictions"
        transform = (c.linear(f"{name}.dense"), GELU, c.norm(f"{name}.LayerNorm", "layer", eps))
        return masked_lm(c, transform, embedding, "generator_lm_head")

    def discriminator() -> Head:
        name = "discriminator_predictions"
        score = c.linear(f"{name}.dense_prediction")
        return Head((c.linear(f"{name}.dense"), c.activation("hidden_act"), score))

    by_class = {
        "ElectraModel": Head,
        "ElectraForMaskedLM": generator,
        "ElectraForPreTraining": discriminator,
        "ElectraForSequenceClassification": lambda: classifier(
            c, "classifier.dense", GELU, "classifier.out_proj"
        ),
    }
    return Network(body, read_head(c, by_class))


_TINY = tiny(embedding_size=16, max_position_embeddings=32)
architectures.register("electra")(
    Architecture(
        read,
        tiny={
            "base model": Tiny("ElectraModel", _TINY),
            "wide embedding": Tiny("ElectraModel", _TINY | {"embedding_size": 24}),
            "generator": Tiny("ElectraForMaskedLM", _TINY),
            "generator, untied, relu": Tiny(
                "ElectraForMaskedLM", _TINY | {"tie_word_embeddings": False, "hidden_act": "relu"}
            ),
            "discriminator": Tiny("ElectraForPreTraining", _TINY),
            "classifier": Tiny("ElectraForSequenceClassification", _TINY | {"num_labels": 3}),
        },
        wrong={"layer_norm_eps": 0.1},
    )
)
