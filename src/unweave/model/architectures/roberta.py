"""RoBERTa: BERT with positions after the padding index, and its own heads."""

from unweave.model.architectures import _encoder as encoder
from unweave.model.architectures._tiny import encoder_variants, tiny
from unweave.model.checkpoint import Architecture, Checkpoint, Tiny, architectures
from unweave.model.weights import Network, Stack


def read(c: Checkpoint) -> Network:
    root, eps = c.root("roberta."), c.get("layer_norm_eps")
    embedding = encoder.bert_embedding(c, root, eps, position_offset=c.get("pad_token_id") + 1)
    body = Stack(embedding, encoder.bert_blocks(c, root))
    return Network(body, encoder.roberta_head(c, "Roberta", root, embedding, eps))


_TINY = tiny(max_position_embeddings=40, type_vocab_size=1)
architectures.register("roberta")(
    Architecture(
        read,
        tiny={
            **encoder_variants("Roberta", _TINY),
            "two types, other padding": Tiny(
                "RobertaModel", _TINY | {"type_vocab_size": 2, "pad_token_id": 0}
            ),
        },
        wrong={"layer_norm_eps": 0.1},
    )
)
