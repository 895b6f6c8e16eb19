"""How llama.cpp writes each family into a GGUF file, and the way back to transformers' names.

llama.cpp renames tensors, reorders the rows of some and shifts others. A `GgufFamily` says as data
what it did, so that another family is one more entry. What a file holds and its family does not
name is an error: a file is read whole or not at all.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from unweave.errors import UnweaveError
from unweave.model.checkpoint import architectures
from unweave.model.configs import check_fields
from unweave.model.gguf_file import GgufFile, dequantised
from unweave.model.positions import rotary_of
from unweave.registry import nearest


@dataclass(frozen=True, eq=False)
class GgufFamily:
    """How llama.cpp writes one family.

    Args:
        model_class: The transformers class that the tensors belong to.
        names: Tensors of a block that are called otherwise than in `_BLOCK`.
        rows_permuted: Whether rows of q and k are reordered from (half, pair) to (pair, half), for
            llama.cpp's kind of rotary positions.
        norms_shifted: Whether norms are stored as weight + 1.
        extra: Config fields that follow from others.
    """

    model_class: str
    names: Mapping[str, str] = field(default_factory=dict)
    rows_permuted: bool = False
    norms_shifted: bool = False
    extra: Callable[[GgufFile], dict[str, Any]] = lambda file: {}


# Metadata key -> config field, the same in every family here.
_FIELDS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "vocab_size": "vocab_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
# Read below, or true of every family here.
_OTHER_FIELDS = re.compile(r"rope\.(freq_base|dimension_count|scaling\..*)|attention\.value_length")

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_SANDWICH = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def _biases(file: GgufFile) -> dict[str, Any]:
    return {
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
    }


def _gemma_scale(file: GgufFile, largest: int) -> dict[str, Any]:
    # Scores are scaled by √d_head, but in the largest model by √(d_model / heads); the file does
    # not say so, llama.cpp knows that model by its number of layers.
    per_head = file.get("embedding_length") // file.get("attention.head_count")
    is_largest = file.get("block_count") == largest
    return {"query_pre_attn_scalar": per_head if is_largest else file.get("attention.key_length")}


def _gemma3_extra(file: GgufFile) -> dict[str, Any]:
    # The file has the rotary base of the layers without a window; the others' never changed.
    bases = {"sliding_attention": _plain_rope(10000.0), "full_attention": _rope(file)}
    return {"rope_parameters": bases, **_gemma_scale(file, largest=62)}


FAMILIES = {
    "llama": GgufFamily("LlamaForCausalLM", rows_permuted=True, extra=_biases),
    "qwen2": GgufFamily("Qwen2ForCausalLM"),
    "qwen3": GgufFamily("Qwen3ForCausalLM"),
    "gemma2": GgufFamily(
        "Gemma2ForCausalLM",
        names=_SANDWICH,
        norms_shifted=True,
        extra=lambda file: _gemma_scale(file, largest=46),
    ),
    "gemma3": GgufFamily(
        "Gemma3ForCausalLM", names=_SANDWICH, norms_shifted=True, extra=_gemma3_extra
    ),
}


def model_type_of(file: GgufFile) -> str:
    """The architecture that reads this file, by the name that llama.cpp gives the family."""
    known = {
        name: model_type
        for model_type in architectures
        if (name := architectures[model_type].gguf) in FAMILIES
    }
    if file.architecture not in known:
        raise UnweaveError(
            f"{file.path}: GGUF files of the family {file.architecture!r} are not supported: "
            f"{nearest(file.architecture, known)} Load its safetensors checkpoint instead, or add "
            "the family to FAMILIES in src/unweave/model/gguf_families.py."
        )
    return known[file.architecture]


def config_fields(file: GgufFile) -> dict[str, Any]:
    """The fields of the family's transformers config.

    Raises:
        UnweaveError: For a field of the model's section that has no counterpart here.
    """
    section = f"{file.architecture}."
    keys = [key.removeprefix(section) for key in file.metadata if key.startswith(section)]
    unknown = [key for key in keys if key not in _FIELDS and not _OTHER_FIELDS.fullmatch(key)]
    if unknown:
        found = ", ".join(f"{section}{key} = {file.get(key)!r}" for key in unknown)
        raise UnweaveError(
            f"{file.path} has fields that unweave does not know: {found}. "
            "Add them to src/unweave/model/gguf_families.py, or load the safetensors checkpoint."
        )
    fields = {_FIELDS[key]: _shortest(file.get(key)) for key in keys if key in _FIELDS}
    check_fields(fields, file.path)  # what follows computes with them
    fields.setdefault("vocab_size", int(file.tensors["token_embd.weight"].shape[-1]))
    return fields | {
        "rope_parameters": _rope(file),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        **{
            name: file.metadata.get(f"tokenizer.ggml.{name}")
            for name in ("bos_token_id", "eos_token_id")
        },
        **FAMILIES[file.architecture].extra(file),
    }


def _shortest(value: Any) -> Any:
    # Written as float32: 9.99999975e-06 was 1e-05, the shortest number that rounds to it.
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _plain_rope(base: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": base}


def _d_head(file: GgufFile) -> int:
    d_model, heads = file.get("embedding_length"), file.get("attention.head_count")
    return file.get("attention.key_length") or d_model // heads


def _rope(file: GgufFile) -> dict[str, Any]:
    plain = _plain_rope(_shortest(file.get("rope.freq_base", 10000.0)))
    d_head = _d_head(file)
    if file.get("rope.dimension_count", d_head) != d_head:
        raise UnweaveError(
            f"{file.path} rotates {file.get('rope.dimension_count')} of {d_head} dimensions: "
            "partial rotary positions are not supported in GGUF files of this family, load the "
            "safetensors checkpoint instead"
        )
    if "rope_freqs.weight" in file.tensors:
        return _llama3_rope(file, plain, d_head)
    kind = file.get("rope.scaling.type", "none")
    if kind == "none":
        return plain
    scaling = {
        "factor": _shortest(file.get("rope.scaling.factor")),
        "original_max_position_embeddings": file.get("rope.scaling.original_context_length"),
    }
    known = {"type", "factor", "original_context_length", "finetuned"}
    section = f"{file.architecture}.rope.scaling."
    for key in file.metadata:
        if key.startswith(section) and key.removeprefix(section) not in known:
            raise UnweaveError(f"{file.path}: {key} is not supported; use the safetensors model")
    return plain | {"rope_type": kind} | {k: v for k, v in scaling.items() if v is not None}


def _llama3_rope(file: GgufFile, plain: dict[str, Any], d_head: int) -> dict[str, Any]:
    """Llama 3's scaling, of which the file keeps only what each frequency is divided by.

    Every published model has the same bounds, so the largest divisor gives the rest; computed
    back, they have to give the stored divisors.
    """
    stored = torch.from_numpy(dequantised(file, "rope_freqs.weight"))
    bounds = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    guess = plain | {
        "rope_type": "llama3",
        "factor": stored.max().item(),
        "original_max_position_embeddings": 8192,
        **bounds,
    }
    frequencies = [rotary_of(p, d_head, None).inverse_frequencies for p in (plain, guess)]
    divisors = frequencies[0] / frequencies[1]
    if divisors.shape != stored.shape or not torch.allclose(divisors, stored, rtol=1e-4):
        raise UnweaveError(
            f"{file.path}: rope_freqs.weight is not Llama 3's scaling with its usual bounds: "
            "load the safetensors checkpoint instead"
        )
    return guess


def tensor_names(file: GgufFile) -> dict[str, str]:
    """llama.cpp's name of each tensor -> transformers' name.

    Raises:
        UnweaveError: For a tensor that its family does not have.
    """
    block = _BLOCK | dict(FAMILIES[file.architecture].names)
    names = {}
    for name in file.tensors:
        if name == "rope_freqs.weight":  # in the config, as rotary parameters
            continue
        stem, _, kind = name.rpartition(".")
        if match := re.fullmatch(r"blk\.(\d+)\.(\w+)", stem):
            target, prefix = block.get(match[2]), f"model.layers.{match[1]}."
        else:
            target, prefix = _TOP.get(stem), ""
        if target is None:
            raise UnweaveError(
                f"{file.path} has a tensor that unweave does not know: {name}. "
                "Add it to src/unweave/model/gguf_families.py, or load the safetensors checkpoint."
            )
        names[name] = f"{prefix}{target}.{kind}"
    return names


def tensors(file: GgufFile) -> Iterator[np.ndarray]:
    """The tensors in float32, in the order of `tensor_names`, one at a time."""
    family = FAMILIES[file.architecture]
    heads = {
        "attn_q": file.get("attention.head_count"),
        "attn_k": file.get("attention.head_count_kv", file.get("attention.head_count")),
    }
    for name in tensor_names(file):
        values = dequantised(file, name)
        stem = name.split(".")[-2]
        if family.rows_permuted and stem in heads:
            values = _unpermuted(values, heads[stem])
        if family.norms_shifted and stem.endswith("norm"):
            values = values - np.float32(1)
        yield values


def _unpermuted(values: np.ndarray, heads: int) -> np.ndarray:
    pairs = values.reshape(heads, -1, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(values.shape))
