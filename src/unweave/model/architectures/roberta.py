"""RoBERTa: BERT with positions after the padding index, and its own heads."""

from unweave.model.architectures._encoder import (
    TANH,
    bert_blocks,
    bert_embedding,
    classifier,
    roberta_masked_lm,
    unsupported,
)
from unweave.model.checkpoint import Architecture, Checkpoint, Tiny, architectures
from unweave.model.weights import Head, Network, Stack


def read(c: Checkpoint) -> Network:
    root, eps = c.root("roberta."), c.get("layer_norm_eps")
    embedding = bert_embedding(c, root, eps, position_offset=c.get("pad_token_id") + 1)
    body = Stack(embedding, bert_blocks(c, root))
    c.skip(rf"{root}pooler\..*")  # no head of this family reads it
    match c.model_class:
        case "RobertaForSequenceClassification":
            head = classifier(c, "classifier.dense", TANH, "classifier.out_proj")
        case "RobertaForMaskedLM":
            head = roberta_masked_lm(c, embedding, eps)
        case "RobertaModel":
            head = Head()
        case _:
            raise unsupported(
                c, "RobertaModel", "RobertaForMaskedLM", "RobertaForSequenceClassification"
            )
    return Network(body, head)


_TINY = {
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 40,
    "type_vocab_size": 1,
    "initializer_range": 0.3,
}
architectures.register("roberta")(
    Architecture(
        read,
        tiny={
            "base model": Tiny("RobertaModel", _TINY),
            "masked lm": Tiny("RobertaForMaskedLM", _TINY),
            "masked lm, untied, relu": Tiny(
                "RobertaForMaskedLM", _TINY | {"tie_word_embeddings": False, "hidden_act": "relu"}
            ),
            "classifier": Tiny("RobertaForSequenceClassification", _TINY | {"num_labels": 3}),
            "two types, other padding": Tiny(
                "RobertaModel", _TINY | {"type_vocab_size": 2, "pad_token_id": 0}
            ),
        },
        wrong={"layer_norm_eps": 0.1},
    )
)
