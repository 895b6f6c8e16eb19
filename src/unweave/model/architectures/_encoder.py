"""What the encoder families share: BERT's blocks and embedding, attention by names, heads.

Each function builds one record from the tensors it is given the names of. A family's own file
says which records it has, so that the differences between families stand in their files.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor

from unweave.errors import UnweaveError
from unweave.model import weights as w
from unweave.model.checkpoint import Checkpoint

GELU, RELU, TANH = w.Activation("gelu"), w.Activation("relu"), w.Activation("tanh")


def attention(
    c: Checkpoint,
    name: str,
    parts: Sequence[str],
    heads: int,
    scale: float | None = None,
    causal: bool = False,
    **options: Any,
) -> w.Attention:
    """Attention whose q, k, v and output projections are the four `parts` below `name`."""
    q, k, v, out = (c.linear(f"{name}.{part}") for part in parts)
    d_head = len(q.weight) // heads
    return w.Attention(
        q,
        k,
        v,
        out,
        heads=heads,
        kv_heads=heads,
        d_head=d_head,
        scale=d_head**-0.5 if scale is None else scale,
        causal=causal,
        **options,
    )


def post_norm(c: Checkpoint, body: w.Attention | w.Mlp, norm: str, eps: float) -> w.Branch:
    """The original transformer's branch, `x ← norm(x + body(x))`."""
    return w.Branch(body, after=c.norm(norm, "layer", eps))


def bert_mlp(c: Checkpoint, name: str, eps: float, activation: w.Activation) -> w.Branch:
    """The feed-forward half of BERT's block."""
    mlp = w.Mlp(
        c.linear(f"{name}.intermediate.dense"), c.linear(f"{name}.output.dense"), activation
    )
    return post_norm(c, mlp, f"{name}.output.LayerNorm", eps)


def bert_blocks(c: Checkpoint, root: str) -> tuple[w.Block, ...]:
    """All blocks of an encoder that keeps BERT's names (BERT, RoBERTa, ELECTRA)."""
    heads, eps = c.get("num_attention_heads"), c.get("layer_norm_eps")
    activation = c.activation("hidden_act")
    for field in ("hidden_size", "intermediate_size"):
        c.get(field, None)  # visible from the tensors themselves
    c.expect("is_decoder", False)
    c.expect("add_cross_attention", False)
    parts = ("self.query", "self.key", "self.value", "output.dense")

    def block(i: int) -> w.Block:
        name = f"{root}encoder.layer.{i}"
        body = attention(c, f"{name}.attention", parts, heads)
        return w.Block(
            (
                post_norm(c, body, f"{name}.attention.output.LayerNorm", eps),
                bert_mlp(c, name, eps, activation),
            )
        )

    return tuple(block(i) for i in range(c.get("num_hidden_layers")))


def bert_embedding(c: Checkpoint, root: str, eps: float, **options: Any) -> w.Embedding:
    """Token, position and (where the family has them) type vectors, summed and normed."""
    c.get("type_vocab_size", None)  # visible from the tensors themselves
    c.expect("position_embedding_type", "absolute")
    c.skip(rf"{root}embeddings\.position_ids")
    return w.Embedding(
        c.tensor(f"{root}embeddings.word_embeddings.weight"),
        positions=c.tensor(f"{root}embeddings.position_embeddings.weight"),
        types=c.maybe(f"{root}embeddings.token_type_embeddings.weight"),
        norm=c.norm(f"{root}embeddings.LayerNorm", "layer", eps),
        **options,
    )


def vocabulary(
    c: Checkpoint, name: str, embedding: w.Embedding, bias: Float[Tensor, " vocab"] | None
) -> w.Linear:
    """The map to the vocabulary: its own weight, or the embedding's where they are tied."""
    own = c.maybe(f"{name}.weight")
    weight = embedding.tokens if own is None else own
    assert weight is not None
    return w.Linear(weight, bias)


def masked_lm(
    c: Checkpoint,
    transform: Sequence[w.Linear | w.Activation | w.Norm],
    embedding: w.Embedding,
    decoder: str,
    bias: str | None = None,
) -> w.Head:
    """A masked-LM head: a transform, then the vocabulary.

    Transformers stores the output bias as `bias` too; where both are there, `decoder.bias` is
    the one in use.
    """
    own, alias = c.maybe(f"{decoder}.bias"), None if bias is None else c.maybe(bias)
    return w.Head((*transform, vocabulary(c, decoder, embedding, alias if own is None else own)))


def roberta_masked_lm(c: Checkpoint, embedding: w.Embedding, eps: float) -> w.Head:
    """The masked-LM head of RoBERTa and MPNet."""
    transform = (c.linear("lm_head.dense"), GELU, c.norm("lm_head.layer_norm", "layer", eps))
    return masked_lm(c, transform, embedding, "lm_head.decoder", "lm_head.bias")


def roberta_head(
    c: Checkpoint, family: str, root: str, embedding: w.Embedding, eps: float
) -> w.Head:
    """The heads of RoBERTa and MPNet; `family` is what the names of their classes begin with."""
    c.skip(rf"{root}pooler\..*")  # no head of these families reads it
    return read_head(
        c,
        {
            f"{family}Model": w.Head,
            f"{family}ForMaskedLM": lambda: roberta_masked_lm(c, embedding, eps),
            f"{family}ForSequenceClassification": lambda: classifier(
                c, "classifier.dense", TANH, "classifier.out_proj"
            ),
        },
    )


def classifier(c: Checkpoint, dense: str, activation: w.Activation, out: str) -> w.Head:
    """A classifier that reads the first position: dense, activation, classes."""
    return w.Head((c.linear(dense), activation, c.linear(out)), first=True, labels=labels(c))


def stack_tokens(c: Checkpoint, root: str, stack: str) -> Float[Tensor, "vocab d"]:
    """The token vectors of an encoder or decoder: its own, or those that both share."""
    shared = c.maybe(f"{root}shared.weight")
    own = f"{root}{stack}.embed_tokens.weight"
    return c.tensor(own) if shared is None or c.has(own) else shared


def labels(c: Checkpoint) -> tuple[str, ...]:
    """Class names in the order of the classifier's outputs (JSON makes their keys strings)."""
    names = c.get("id2label", None) or {}
    return tuple(names[key] for key in sorted(names, key=int))


def read_head(c: Checkpoint, heads: Mapping[str, Callable[[], w.Head]]) -> w.Head:
    """The head of the checkpoint's class; only that one is read."""
    if c.model_class not in heads:
        raise unsupported(c, *heads)
    return heads[c.model_class]()


def unsupported(c: Checkpoint, *known: str) -> UnweaveError:
    """The error for a class of the family whose head has no mapping here."""
    return UnweaveError(
        f"{c.model_class} has a head that unweave does not know: expected {', '.join(known)}"
    )
