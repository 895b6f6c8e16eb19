"""Writes a transformers model as GGUF the way llama.cpp's converter does, for tests to read back.

Names come from the gguf package's own table, permutation and shift from the converter's equations,
so nothing here is shared with `unweave.model.gguf_families`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from unweave.model.checkpoint import Tiny
from unweave.testing.oracle import build

# A small byte-level vocabulary: special tokens, every byte, a few merges.
SPECIAL = ["<s>", "</s>", "<unk>"]
MERGES = [("Ġ", "M"), ("a", "r"), ("ĠM", "ar"), ("ĠMar", "y"), ("1", "7")]


def _bytes_as_text() -> list[str]:
    """GPT-2's printable stand-in for each byte."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


VOCABULARY = SPECIAL + _bytes_as_text() + ["".join(pair) for pair in MERGES]

SIZES: dict[str, Any] = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 4}
HEADS = {"attention.key_length": 16, "attention.value_length": 16, "attention.sliding_window": 4}
BASES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "default", "rope_theta": 1e6},
}
# Family -> the model, and the metadata that says what its config has beyond the common fields.
MODELS: dict[str, tuple[Tiny, dict[str, Any]]] = {
    "llama": (
        Tiny("LlamaForCausalLM", SIZES | {"attention_bias": True, "tie_word_embeddings": False}),
        {"rope.dimension_count": 8, "vocab_size": len(VOCABULARY)},
    ),
    "qwen2": (
        Tiny("Qwen2ForCausalLM", SIZES | {"rope_parameters": BASES["full_attention"]}),
        {"rope.freq_base": 1e6},
    ),
    "qwen3": (
        Tiny("Qwen3ForCausalLM", SIZES | {"head_dim": 16, "tie_word_embeddings": True}),
        {"attention.key_length": 16, "attention.value_length": 16},
    ),
    "gemma2": (
        Tiny(
            "Gemma2ForCausalLM",
            SIZES | GEMMA | {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
        ),
        HEADS | {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
    ),
    "gemma3": (
        Tiny(
            "Gemma3ForCausalLM", SIZES | GEMMA | {"num_hidden_layers": 7, "rope_parameters": BASES}
        ),
        HEADS | {"rope.freq_base": 1e6},
    ),
}


def tiny_gguf(folder: Path, family: str = "llama", **options: Any) -> tuple[Any, Path]:
    """A tiny random transformers model and its file; options as in `write_gguf`."""
    spec, metadata = MODELS[family]
    model = build(spec)
    own = {f"{family}.{key}": value for key, value in metadata.items()}
    options["metadata"] = own | options.get("metadata", {})
    return model, write_gguf(folder / f"{family}.gguf", model, family, **options)


def permuted(values: np.ndarray, heads: int) -> np.ndarray:
    """(head, half, pair) -> (head, pair, half), row by row."""
    halves = values.reshape(heads, 2, -1, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def write_gguf(
    path: Path,
    model: Any,
    name: str,
    quantisation: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """Args:
    name: llama.cpp's name of the family.
    quantisation: Of the matrices; vectors stay in float32.
    metadata: Further fields (ints, floats, strings and booleans), which replace those here.
    tensors: Further tensors.
    """
    config = model.config
    writer = gguf.GGUFWriter(path, name)
    fields: dict[str, Any] = {
        f"{name}.block_count": config.num_hidden_layers,
        f"{name}.context_length": config.max_position_embeddings,
        f"{name}.embedding_length": config.hidden_size,
        f"{name}.feed_forward_length": config.intermediate_size,
        f"{name}.attention.head_count": config.num_attention_heads,
        f"{name}.attention.head_count_kv": config.num_key_value_heads,
        f"{name}.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        **(metadata or {}),
    }
    adders = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    for key, value in fields.items():
        adders.get(type(value), writer.add_string)(key, value)
    writer.add_token_list(VOCABULARY)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(VOCABULARY) - len(SPECIAL)))
    writer.add_token_merges([" ".join(pair) for pair in MERGES])
    for target, values in (_converted(model, name) | dict(tensors or {})).items():
        kind = quantisation if values.ndim > 1 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(target, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _converted(model: Any, name: str) -> dict[str, np.ndarray]:
    config = model.config
    architecture = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == name)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    converted = {}
    for source, tensor in model.state_dict().items():
        if source == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.numpy()
        if name == "llama" and ".q_proj." in source:
            values = permuted(values, config.num_attention_heads)
        if name == "llama" and ".k_proj." in source:
            values = permuted(values, config.num_key_value_heads)
        if name.startswith("gemma") and "norm" in source:
            values = values + 1
        target = names.get_name(source, try_suffixes=(".weight", ".bias"))
        assert target is not None, source
        converted[target] = np.ascontiguousarray(values)
    return converted
