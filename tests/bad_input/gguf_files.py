"""Damaged GGUF files: bytes, counts, metadata and tensors."""

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from bad_input.case import Case, Make, file
from oracles.gguf_writer import VOCABULARY, tiny_gguf

HUGE = 1 << 60
STRING, ARRAY, UINT8, UINT32, BOOL = 8, 9, 0, 4, 7
HEADS, DAMAGED = "llama.attention.head_count", "is not a whole GGUF file"


def start(tensors: int, fields: int, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, fields)


def text(value: str | bytes) -> bytes:
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def array(kind: int, count: int, items: bytes = b"") -> bytes:
    """A field `a` that holds an array."""
    return text("a") + struct.pack("<IIQ", ARRAY, kind, count) + items


def tensor(dims: list[int], kind: int = 0, offset: int = 0) -> bytes:
    return text("t") + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


FAMILY = text("general.architecture") + struct.pack("<I", STRING) + text("llama")

RAW: list[tuple[str, bytes, str]] = [
    ("empty", b"", DAMAGED),
    ("magic only", b"GGUF", DAMAGED),
    ("other magic", b"GGML" + start(0, 0)[4:], DAMAGED),
    ("text", b"hello, this is not a model", DAMAGED),
    ("version 99", start(0, 0, version=99), DAMAGED),
    ("nothing in it", start(0, 0), "names no general.architecture"),
    ("2⁶⁰ fields", start(0, HUGE), DAMAGED),
    ("2⁶⁰ tensors", start(HUGE, 0), DAMAGED),
    ("array of 2⁶⁰ bytes", start(0, 1) + array(UINT8, HUGE, b"xy"), DAMAGED),
    ("array of 2⁶⁰ numbers", start(0, 1) + array(UINT32, HUGE, b"xy"), DAMAGED),
    ("array of 2⁶⁰ strings", start(0, 1) + array(STRING, HUGE, text("x")), DAMAGED),
    ("array of 2⁶⁰ booleans", start(0, 1) + array(BOOL, HUGE), DAMAGED),
    ("array of 2⁶⁰ arrays", start(0, 1) + array(ARRAY, HUGE), DAMAGED),
    ("array one past the end", start(0, 1) + array(UINT8, 3, b"xy"), DAMAGED),
    ("array of an unknown type", start(0, 1) + array(99, 1, b"x" * 8), DAMAGED),
    (
        "arrays in arrays",
        start(0, 1) + array(ARRAY, 1, struct.pack("<IQ", ARRAY, 1) * 5000),
        DAMAGED,
    ),
    ("string of 2⁶⁰ bytes", start(0, 1) + struct.pack("<Q", HUGE), DAMAGED),
    ("key that is not UTF-8", start(0, 1) + text(b"\xff") + struct.pack("<IB", UINT8, 1), DAMAGED),
    ("unknown type of field", start(0, 1) + text("a") + struct.pack("<I", 99), DAMAGED),
    ("a field twice", start(0, 2) + FAMILY * 2, DAMAGED),
    (
        "family is a number",
        start(0, 1) + text("general.architecture") + struct.pack("<II", UINT32, 3),
        "names no general.architecture",
    ),
    ("tensor of 2⁶⁰ dimensions", start(1, 1) + FAMILY + text("t") + b"\xff" * 4, DAMAGED),
    ("tensor of 2⁶⁰ rows", start(1, 1) + FAMILY + tensor([HUGE]), DAMAGED),
    ("sizes that overflow", start(1, 1) + FAMILY + tensor([1 << 32, 1 << 32]), DAMAGED),
    ("tensor far past the end", start(1, 1) + FAMILY + tensor([8], offset=HUGE), DAMAGED),
    ("tensor of an unknown type", start(1, 1) + FAMILY + tensor([8], kind=77), DAMAGED),
    ("tensor that is not there", start(1, 1) + FAMILY + tensor([8]), DAMAGED),
    (
        "tensor without dimensions",
        start(1, 1) + FAMILY + tensor([]) + b"\0" * 64,
        "does not know: t.",
    ),
    ("no tensors", start(0, 1) + FAMILY, DAMAGED),
]

# Changed metadata of a whole file, and what the error says.
METADATA: list[tuple[dict[str, Any], str]] = [
    ({HEADS: 0}, "num_attention_heads = 0"),
    ({HEADS: 5}, "rotates 8 of 6 dimensions"),
    ({HEADS: 8}, "rotates 8 of 4 dimensions"),
    ({HEADS: "4"}, "num_attention_heads = '4': expected a whole number"),
    ({HEADS: 4.0}, "num_attention_heads = 4.0: expected a whole number"),
    ({HEADS: 10**9}, "rotates"),
    ({f"{HEADS}_kv": 0}, "num_key_value_heads = 0"),
    ({f"{HEADS}_kv": 3}, "num_key_value_heads = 3 does not divide"),
    ({f"{HEADS}_kv": 4}, "config and weights do not belong together"),
    ({f"{HEADS}_kv": "2"}, "num_key_value_heads = '2'"),
    ({"llama.block_count": 0}, "num_hidden_layers = 0"),
    ({"llama.block_count": 1}, "tensors that nobody read"),
    ({"llama.block_count": 3}, "tensor 'model.layers.2"),
    ({"llama.block_count": 10**9}, "num_hidden_layers = 1000000000: the weights have"),
    ({"llama.block_count": "2"}, "num_hidden_layers = '2': expected a whole number"),
    ({"llama.embedding_length": 64}, "rotates 8 of 16"),
    ({"llama.embedding_length": "32"}, "hidden_size = '32': expected a whole number"),
    ({"llama.feed_forward_length": 10**9}, "intermediate_size = 1000000000"),
    ({"llama.feed_forward_length": True}, "intermediate_size = True"),
    ({"llama.context_length": 0}, "max_position_embeddings = 0"),
    ({"llama.context_length": "x"}, "max_position_embeddings = 'x'"),
    ({"llama.vocab_size": 10**9}, "vocab_size = 1000000000"),
    ({"llama.attention.layer_norm_rms_epsilon": "x"}, "rms_norm_eps = 'x': expected a number"),
    ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "rms_norm_eps = nan"),
    ({"llama.attention.layer_norm_rms_epsilon": -1.0}, "rms_norm_eps = -1.0"),
    ({"llama.rope.dimension_count": 4}, "rotates 4 of 8 dimensions"),
    ({"llama.rope.freq_base": 0.0}, "rope_theta = 0.0: expected a positive number"),
    ({"llama.rope.freq_base": "x"}, "rope_theta = 'x': expected a positive number"),
    ({"llama.rope.scaling.type": "foo"}, "foo"),
    ({"llama.rope.scaling.type": "linear"}, "factor"),
    ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 0.0}, "factor"),
    ({"llama.attention.key_length": 0}, "head_dim = 0: expected a whole number"),
    ({"llama.expert_count": 8}, "llama.expert_count = 8"),
    ({"llama.attention.sliding_window": 4}, "sliding_window = 4"),
    ({"tokenizer.ggml.bos_token_id": 10**6}, "the tokenizer's tables are damaged"),
    ({"tokenizer.ggml.eos_token_id": "x"}, "bad.gguf: transformers refuses this llama"),
    ({"tokenizer.ggml.model": "llama", "tokenizer.ggml.unknown_token_id": 10**6}, "damaged"),
    ({"tokenizer.ggml.tokens": 3}, "the tokenizer's tables are damaged"),
    ({"tokenizer.ggml.merges": "a b"}, "the tokenizer's tables are damaged"),
    ({"general.architecture": "lamma"}, "did you mean llama"),
    ({"general.architecture": "[/red]"}, "family '[/red]' are not supported"),
]

ROWS = len(VOCABULARY)
TENSORS: list[tuple[str, np.ndarray, str]] = [
    ("blk.0.ffn_magic.weight", np.ones(3, np.float32), "ffn_magic"),
    ("blk.7.attn_norm.weight", np.ones(32, np.float32), "tensors that nobody read"),
    ("magic", np.ones(3, np.float32), "does not know: magic"),
    ("blk.0.attn_norm.weight", np.ones(31, np.float32), "config and weights do not belong"),
    ("blk.0.attn_q.weight", np.ones((31, 32), np.float32), "config and weights do not belong"),
    ("blk.0.attn_k.weight", np.ones((8, 32), np.float32), "config and weights do not belong"),
    ("blk.0.ffn_up.weight", np.ones((64, 31), np.float32), "config and weights do not belong"),
    ("blk.1.ffn_down.weight", np.ones((32, 63), np.float32), "config and weights do not belong"),
    ("token_embd.weight", np.ones((ROWS, 31), np.float32), "config and weights do not belong"),
    ("token_embd.weight", np.ones(ROWS, np.float32), "config and weights do not belong"),
    ("output.weight", np.full((ROWS, 32), np.nan, np.float32), "values that are not finite"),
    ("output_norm.weight", np.full(32, np.inf, np.float32), "values that are not finite"),
    ("rope_freqs.weight", np.ones(4, np.float32) * 3, "rope_freqs.weight is not Llama 3's"),
    ("rope_freqs.weight", np.ones(5, np.float32), "rope_freqs.weight is not Llama 3's"),
]


def rewritten(
    metadata: dict[str, Any] | None = None, tensors: dict[str, np.ndarray] | None = None
) -> Make:
    """A whole tiny file, its metadata and tensors changed."""
    changes, arrays = metadata or {}, tensors or {}

    def make(folder: Path) -> None:
        _, whole = tiny_gguf(folder)
        reader = gguf.GGUFReader(whole)
        writer = gguf.GGUFWriter(folder / "bad.gguf", changes.get("general.architecture", "llama"))
        adders = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
        fields = {n: f for n, f in reader.fields.items() if not n.startswith(("GGUF.", "general."))}
        for name, field in fields.items():
            value = changes.get(name, field.contents())
            if isinstance(value, list):
                writer.add_array(name, value)
            else:
                adders.get(type(value), writer.add_string)(name, value)
        for name, value in changes.items():
            if name not in fields and not name.startswith("general."):
                adders.get(type(value), writer.add_string)(name, value)
        for t in reader.tensors:
            if t.name not in arrays:
                writer.add_tensor(t.name, t.data)
        for name, values in arrays.items():
            writer.add_tensor(name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        whole.unlink()

    return make


def cut(share: float) -> Make:
    def make(folder: Path) -> None:
        _, whole = tiny_gguf(folder)
        data = whole.read_bytes()
        (folder / "bad.gguf").write_bytes(data[: int(share * len(data))])
        whole.unlink()

    return make


CASES = [
    *(Case(name, "check {bad}/bad.gguf", says, file("bad.gguf", data)) for name, data, says in RAW),
    *(
        Case(f"{changes}"[:90], "check {bad}/bad.gguf", says, rewritten(changes))
        for changes, says in METADATA
    ),
    *(
        Case(
            f"{name} {list(values.shape)}",
            "check {bad}/bad.gguf",
            says,
            rewritten(tensors={name: values}),
        )
        for name, values, says in TENSORS
    ),
    *(
        Case(f"cut at {share}", "check {bad}/bad.gguf", DAMAGED, cut(share))
        for share in (0.0001, 0.01, 0.3, 0.7, 0.9999)
    ),
    Case("a folder", "check {bad}/bad.gguf", "cannot be read", lambda f: (f / "bad.gguf").mkdir()),
]
