"""What the Gemmas share beyond Llama: norms that store weight − 1, and scaled embeddings."""

from collections.abc import Callable
from dataclasses import replace

import torch

from unweave.model.architectures import _llama_like as like
from unweave.model.checkpoint import Checkpoint
from unweave.model.weights import Activation, Attention, Block, Branch, Mlp, Network, Norm


def norm(c: Checkpoint, name: str) -> Norm:
    return replace(like.norm(c, name), shift=1.0)


def sandwich_block(c: Checkpoint, name: str, attention: Attention, mlp: Mlp) -> Block:
    """From Gemma 2 on: a norm before and after each branch."""
    return Block(
        (
            Branch(
                attention,
                pre=norm(c, f"{name}.input_layernorm"),
                post=norm(c, f"{name}.post_attention_layernorm"),
            ),
            Branch(
                mlp,
                pre=norm(c, f"{name}.pre_feedforward_layernorm"),
                post=norm(c, f"{name}.post_feedforward_layernorm"),
            ),
        )
    )


def network(c: Checkpoint, base_class: str, block: Callable[[int, str], Block]) -> Network:
    """Llama's network with token vectors times √d_model and a shifted final norm."""
    plain = like.network(c, base_class, block)
    body = plain.body
    assert body.norm is not None
    # √d_model rounded to float32, as transformers keeps it; it matters to float64 models only.
    scale = torch.tensor(c.get("hidden_size") ** 0.5, dtype=torch.float32).item()
    embedding, final = replace(body.embedding, scale=scale), replace(body.norm, shift=1.0)
    return replace(plain, body=replace(body, embedding=embedding, norm=final))


def sandwich_network(
    c: Checkpoint, base_class: str, attention: Callable[[int, str], Attention]
) -> Network:
    """From Gemma 2 on: sandwich norms, and `cap·tanh(logits/cap)` after the head.

    Args:
        c: The checkpoint.
        base_class: The transformers class without a head; it has no logits to cap.
        attention: Reads one block's attention, given its index and the prefix of its tensors.
    """

    def block(i: int, name: str) -> Block:
        mlp = like.mlp(c, name, "hidden_activation")
        return sandwich_block(c, name, attention(i, name), mlp)

    plain, cap = network(c, base_class, block), c.get("final_logit_softcapping")
    if cap is None or not plain.head.steps:
        return plain
    steps = (*plain.head.steps, Activation("softcap", cap))
    return replace(plain, head=replace(plain.head, steps=steps))
