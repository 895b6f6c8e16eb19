"""ELECTRA: BERT with a narrow embedding that is projected up, as generator or discriminator."""

from unweave.model.architectures._encoder import (
    GELU,
    bert_blocks,
    bert_embedding,
    classifier,
    masked_lm,
    unsupported,
)
from unweave.model.checkpoint import Architecture, Checkpoint, Tiny, architectures
from unweave.model.weights import Head, Network, Stack


def read(c: Checkpoint) -> Network:
    root, eps = c.root("electra."), c.get("layer_norm_eps")
    c.get("embedding_size", None)  # visible from the tensors themselves
    project = f"{root}embeddings_project"
    projection = c.linear(project) if c.has(f"{project}.") else None
    embedding = bert_embedding(c, root, eps, projection=projection)
    body = Stack(embedding, bert_blocks(c, root))
    match c.model_class:
        case "ElectraForSequenceClassification":
            head = classifier(c, "classifier.dense", GELU, "classifier.out_proj")
        case "ElectraForMaskedLM":
            name = "generator_predictions"
            transform = (c.linear(f"{name}.dense"), GELU, c.norm(f"{name}.LayerNorm", "layer", eps))
            head = masked_lm(c, transform, embedding, "generator_lm_head")
        case "ElectraForPreTraining":
            name = "discriminator_predictions"
            score = c.linear(f"{name}.dense_prediction")
            head = Head((c.linear(f"{name}.dense"), c.activation("hidden_act"), score))
        case "ElectraModel":
            head = Head()
        case _:
            raise unsupported(
                c,
                "ElectraModel",
                "ElectraForMaskedLM",
                "ElectraForPreTraining",
                "ElectraForSequenceClassification",
            )
    return Network(body, head)


_TINY = {
    "vocab_size": 61,
    "embedding_size": 16,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "initializer_range": 0.3,
}
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
