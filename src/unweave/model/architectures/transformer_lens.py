"""TransformerLens's own checkpoints (attn-only-*l, gelu-*l, solu-*l): GPT-2's layout, by head.

These repositories hold a `config.json` of the training run and a `.pth` state dict, and have no
class in transformers. So there is no tiny config here: tests/oracles/transformer_lens.py is the
oracle, written from the definitions.
"""

import re

from unweave.model import weights as w
from unweave.model.checkpoint import Architecture, Checkpoint, architectures

# What the training run and TransformerLens's tools note down, without effect on the output.
_BOOKKEEPING = re.compile(
    r"""lr(_.*)? | .*batch(es)?(_.*)? | .*tokens.* | .*_steps | seed | betas | weight_decay
      | grad_norm_clip | train_loss_.* | log_interval | debug.* | save_checkpoints.* | version
      | dataset_.* | tokenizer_.* | use_b?float16.* | use_acc | weight_init_.* | init_.* | .*_init
      | device | n_devices | n_params | model_name | original_architecture
      | (from_)?checkpoint.* | default_prepend_bos | trust_remote_code
      | use_attn_result | use_split_qkv_input | use_attn_in | use_hook_.* | layer_norm_folding
      | ungroup_grouped_query_attention | d_vocab(_out)? | rotary_.* | .*NTK.* | .*yarn.*
      | load_in_4bit | norm_topk_prob""",
    re.VERBOSE,
)
# What would change the output, each at the value that does not.
_NEUTRAL = {
    "architecture": "neel",
    "right_multiply_matrices": True,
    "use_pos_resid": True,
    "positional_embedding_type": "standard",
    "shortformer_pos": False,
    "attention_dir": "causal",
    "use_attn_scale": True,
    "scale_attn_by_inverse_layer_idx": False,
    "use_local_attn": False,
    "window_size": None,
    "attn_types": None,
    "attn_scores_soft_cap": -1,
    "output_logits_soft_cap": -1,
    "n_key_value_heads": None,
    "use_qk_norm": False,
    "parallel_attn_mlp": False,
    "gated_mlp": False,
    "num_experts": None,
    "experts_per_token": None,
    "uses_rms_norm": False,
    "use_normalization_before_and_after": False,
    "post_embedding_ln": False,
    "factored_embed": False,
    "relative_attention_max_distance": None,
    "relative_attention_num_buckets": None,
}


def read(c: Checkpoint) -> w.Network:
    for field, value in _NEUTRAL.items():
        c.expect(field, value)
    for field in filter(_BOOKKEEPING.fullmatch, c.config):
        c.get(field)
    for field in ("d_model", "d_mlp"):
        c.get(field, None)  # visible from the tensors themselves
    c.skip(r"blocks\.\d+\.attn\.(mask|IGNORE)")
    attn_only = c.get("attn_only", False)
    activation = None if attn_only else _activation(c)
    c.get("act_fn", None)  # attention-only models name one all the same

    def block(i: int) -> w.Block:
        attention = w.Branch(_attention(c, f"blocks.{i}.attn"), pre=_norm(c, f"blocks.{i}.ln1"))
        if activation is None:
            return w.Block((attention,))
        mlp = w.Branch(_mlp(c, f"blocks.{i}.mlp", activation), pre=_norm(c, f"blocks.{i}.ln2"))
        return w.Block((attention, mlp))

    body = w.Stack(
        w.Embedding(c.tensor("embed.W_E"), positions=c.tensor("pos_embed.W_pos")),
        tuple(block(i) for i in range(c.get("n_layers"))),
        _norm(c, "ln_final", rms=c.get("final_rms", False)),
    )
    return w.Network(body, w.Head((_right(c, "unembed", "U"),)))


def _right(c: Checkpoint, name: str, part: str) -> w.Linear:
    """`x W + b`: TransformerLens's weights stand on the right of what they multiply."""
    return w.Linear(c.tensor(f"{name}.W_{part}").T, c.maybe(f"{name}.b_{part}"))


def _attention(c: Checkpoint, name: str) -> w.Attention:
    heads, d_head = c.get("n_heads"), c.get("d_head")

    def project(part: str) -> w.Linear:
        weight = c.tensor(f"{name}.W_{part}")  # [head, d_model, d_head]
        return w.Linear(weight.transpose(1, 2), c.maybe(f"{name}.b_{part}"))

    divisor = c.get("attn_scale", -1.0)
    return w.Attention(
        project("Q"),
        project("K"),
        project("V"),
        # [head, d_head, d_model]: the heads lie one below the other.
        w.Linear(c.tensor(f"{name}.W_O").flatten(0, 1).T, c.maybe(f"{name}.b_O")),
        heads=heads,
        kv_heads=heads,
        d_head=d_head,
        scale=1 / divisor if divisor > 0 else d_head**-0.5,
        causal=True,
    )


def _activation(c: Checkpoint) -> w.Activation:
    solu = c.get("act_fn") in ("solu", "solu_ln")
    return w.Activation("solu") if solu else c.activation("act_fn")


def _mlp(c: Checkpoint, name: str, activation: w.Activation) -> w.Mlp:
    norm = None
    if c.get("act_fn") == "solu_ln":
        # Folding into W_out leaves a norm without weights, whatever the kind of the others.
        learned = _normalization(c) == "LN"
        norm = _norm(c, f"{name}.ln") if learned else w.Norm("layer", _eps(c))
    return w.Mlp(_right(c, name, "in"), _right(c, name, "out"), activation, norm=norm)


def _norm(c: Checkpoint, name: str, rms: bool = False) -> w.Norm | None:
    """A norm by the config's word for all of them: LN, RMS, either without weights, or none."""
    eps = _eps(c)
    match _normalization(c):
        case None:
            return None
        case "LN" if not rms:
            return w.Norm("layer", eps, c.tensor(f"{name}.w"), c.tensor(f"{name}.b"))
        case "LNPre" if not rms:
            return w.Norm("layer", eps)
        case "LN" | "RMS":
            return w.Norm("rms", eps, c.tensor(f"{name}.w"))
        case _:
            return w.Norm("rms", eps)


def _normalization(c: Checkpoint) -> str | None:
    field = "normalization" if "normalization" in c.config else "normalization_type"
    c.expect(field, "LN", "LNPre", "RMS", "RMSPre", None)
    return c.get(field, "LN")


def _eps(c: Checkpoint) -> float:
    return c.get("eps", c.get("ln_eps", 1e-5))


# TransformerLens itself puts BOS in front of every text for these models.
architectures.register("transformer_lens")(Architecture(read, tiny={}, wrong={}, needs_bos=True))
