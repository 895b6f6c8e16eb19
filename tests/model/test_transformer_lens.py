"""TransformerLens's checkpoints against the slow twin; transformers has no class for them."""

from typing import Any

import pytest
import torch
from oracles.closeness import assert_close
from oracles.transformer_lens import forward
from torch import Tensor

from unweave.errors import UnweaveError
from unweave.model.checkpoint import Checkpoint, read_network
from unweave.model.model import pad
from unweave.model.program import logits
from unweave.model.weights import Network, tensors

SIZES = {"d_model": 24, "n_layers": 2, "n_heads": 4, "d_head": 8, "d_mlp": 40}
BASE = SIZES | {"n_ctx": 16, "d_vocab": 61, "attn_only": False, "act_fn": "gelu"}
# As the training run of gelu-1l and its kin wrote it, bookkeeping included.
RUN = {
    "normalization": "LN",
    "ln_eps": 1e-5,
    "shortformer_pos": False,
    "tokenizer_name": "NeelNanda/gpt-neox-tokenizer-digits",
    "lr_hidden": 2e-3,
    "batch_size_per_device": 32,
    "batches_per_step": 1,
    "max_tokens": 10**10,
    "use_bfloat16_matmul": True,
    "betas": [0.9, 0.99],
    "initializer_scale_global": 1.0,
    "store_init": False,
    "n_params": 1,
}
LIBRARY = {"normalization_type": "LN", "eps": 1e-5, "positional_embedding_type": "standard"}
VARIANTS: dict[str, dict[str, Any]] = {
    "gelu": BASE | RUN,
    "solu": BASE | RUN | {"act_fn": "solu_ln"},
    "attention only": BASE | RUN | {"act_fn": "solu_ln", "attn_only": True},
    "library config, gelu_new": BASE | LIBRARY | {"act_fn": "gelu_new"},
    "folded norms, solu": BASE | LIBRARY | {"normalization_type": "LNPre", "act_fn": "solu_ln"},
    "no norms": BASE | LIBRARY | {"normalization_type": None, "attn_only": True},
    "rms, relu": BASE | LIBRARY | {"normalization_type": "RMS", "act_fn": "relu"},
    "rms at the end": BASE | LIBRARY | {"final_rms": True},
}
ROWS = [[5, 3, 8, 60, 1, 1, 7, 9, 40], [2, 4, 6, 8], [11]]


def state_of(config: dict[str, Any], dtype: torch.dtype) -> dict[str, Tensor]:
    """A random state dict with the names and shapes that TransformerLens saves."""
    draw = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return (0.3 * torch.randn(shape, generator=draw, dtype=torch.float64)).to(dtype)

    d_model, heads, d_head, d_mlp = (config[k] for k in ("d_model", "n_heads", "d_head", "d_mlp"))
    state = {
        "embed.W_E": normal(config["d_vocab"], d_model),
        "pos_embed.W_pos": normal(config["n_ctx"], d_model),
        "unembed.W_U": normal(d_model, config["d_vocab"]),
        "unembed.b_U": normal(config["d_vocab"]),
    }
    kind = config.get("normalization", config.get("normalization_type"))

    def add_norm(name: str, size: int, rms: bool = False) -> None:
        if kind in ("LN", "RMS"):
            state[f"{name}.w"] = 1 + normal(size)
            if kind == "LN" and not rms:
                state[f"{name}.b"] = normal(size)

    for i in range(config["n_layers"]):
        name = f"blocks.{i}"
        add_norm(f"{name}.ln1", d_model)
        for part in "QKV":
            state[f"{name}.attn.W_{part}"] = normal(heads, d_model, d_head)
            state[f"{name}.attn.b_{part}"] = normal(heads, d_head)
        state[f"{name}.attn.W_O"] = normal(heads, d_head, d_model)
        state[f"{name}.attn.b_O"] = normal(d_model)
        state[f"{name}.attn.mask"] = torch.ones(16, 16, dtype=torch.bool).tril()
        state[f"{name}.attn.IGNORE"] = torch.tensor(-1e5)
        if not config["attn_only"]:
            add_norm(f"{name}.ln2", d_model)
            state[f"{name}.mlp.W_in"] = normal(d_model, d_mlp)
            state[f"{name}.mlp.b_in"] = normal(d_mlp)
            state[f"{name}.mlp.W_out"] = normal(d_mlp, d_model)
            state[f"{name}.mlp.b_out"] = normal(d_model)
            if config["act_fn"] == "solu_ln":
                add_norm(f"{name}.mlp.ln", d_mlp)
    add_norm("ln_final", d_model, config.get("final_rms", False))
    return state


def read(config: dict[str, Any], state: dict[str, Tensor]) -> Network:
    return read_network("transformer_lens", Checkpoint(config, {}, state, "HookedTransformer"))


def both(
    config: dict[str, Any], state: dict[str, Tensor], network: Network
) -> tuple[Tensor, Tensor]:
    """Our logits and the oracle's, at the real tokens of a batch of mixed length."""
    ours = logits(network, pad(ROWS))
    theirs = [forward(config, state, torch.tensor(row)) for row in ROWS]
    return torch.cat([ours[i, : len(row)] for i, row in enumerate(ROWS)]), torch.cat(theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_the_oracle(variant: str, dtype: torch.dtype) -> None:
    config = VARIANTS[variant]
    state = state_of(config, dtype)
    assert_close(*both(config, state, read(config, state)))


@pytest.mark.parametrize("wrong", [{"ln_eps": 0.1}, {"attn_scale": 1.0}, {"act_fn": "relu"}])
def test_a_wrong_config_shows(wrong: dict[str, Any]) -> None:
    config = VARIANTS["gelu"]
    state = state_of(config, torch.float32)
    ours, theirs = both(config, state, read(config | wrong, state))
    assert (ours - theirs).abs().max() > 1e-2


def test_weights_are_views_of_the_checkpoint() -> None:
    config = VARIANTS["solu"]
    state = state_of(config, torch.float32)
    storages = {tensor.untyped_storage().data_ptr() for tensor in state.values()}
    network = read(config, state)
    assert all(tensor.untyped_storage().data_ptr() in storages for tensor in tensors(network))


def test_a_missing_unembedding_bias_is_none() -> None:
    config = VARIANTS["gelu"]
    state = state_of(config, torch.float32)
    del state["unembed.b_U"]
    assert_close(*both(config, state, read(config, state)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shortformer_pos": True}, "shortformer_pos = True is not supported"),
        ({"positional_embedding_type": "shortformer"}, "'shortformer' is not supported"),
        ({"positional_embedding_type": "rotary"}, "'rotary' is not supported"),
        ({"normalization": "batch"}, "normalization = 'batch'"),
        ({"something_new": 3}, "something_new = 3"),
    ],
)
def test_what_is_not_known_is_refused(change: dict[str, Any], message: str) -> None:
    config = VARIANTS["gelu"] | change
    with pytest.raises(UnweaveError, match=message):
        read(config, state_of(VARIANTS["gelu"], torch.float32))
