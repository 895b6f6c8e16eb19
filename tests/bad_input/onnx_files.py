"""Damaged ONNX files, and files whose config.json does not fit them."""

import json
import struct
from collections.abc import Callable
from typing import Any

from bad_input.case import Case, Make, edit, file, folder, steps
from safetensors.torch import load

DAMAGED = "is not a whole ONNX file"


def varint(value: int) -> bytes:
    data = bytearray()
    while value > 127:
        data.append(value & 127 | 128)
        value >>= 7
    return bytes([*data, value])


def long_varint(value: int) -> bytes:
    """The same number below 128, in 11 bytes: more than 64 bits ever need."""
    return bytes([value | 128, *[128] * 9, 0])


def part(number: int, content: bytes) -> bytes:
    """A field of bytes: a string or a message."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def tensor(
    name: str,
    dims: list[int],
    raw: bytes,
    kind: int = 1,
    size: Callable[[int], bytes] = varint,
) -> bytes:
    sizes = b"".join(varint(1 << 3) + size(one) for one in dims)
    return part(5, sizes + varint(2 << 3) + varint(kind) + part(8, name.encode()) + part(9, raw))


def graph(content: bytes) -> bytes:
    return part(7, content)


def exported(change: Any = None, **fields: Any) -> Make:
    """A tiny BERT as an ONNX file beside its config.json, tensors and config changed."""

    def make(target: Any) -> None:
        folder("bert")(target)
        state = load((target / "model.safetensors").read_bytes())
        (target / "model.safetensors").unlink()
        if change is not None:
            change(state)
        data = b"".join(
            tensor(name, [*t.shape], struct.pack(f"<{t.numel()}f", *t.flatten().tolist()))
            for name, t in state.items()
        )
        (target / "bad.onnx").write_bytes(graph(data))
        edit("config.json", **fields)(target)

    return make


BERT = {"model_type": "bert", "architectures": ["BertModel"]}
ONE = struct.pack("<f", 1.0)
RAW: list[tuple[str, bytes, str]] = [
    ("empty", b"", DAMAGED),
    ("text", b"hello", DAMAGED),
    ("zeros", bytes(64), DAMAGED),
    # Without a bound the work grows with the square of the file.
    ("a number without end", b"\xff" * 2_000_000, DAMAGED),
    ("a number of 11 bytes", graph(tensor("a", [1], ONE, size=long_varint)), DAMAGED),
    ("no graph", part(3, b"x"), DAMAGED),
    ("graph past the end", varint(7 << 3 | 2) + varint(1 << 60) + b"x", DAMAGED),
    ("graph is a number", varint(7 << 3) + varint(3), DAMAGED),
    ("group wire type", graph(bytes([5 << 3 | 3])), DAMAGED),
    ("empty graph", graph(b""), "holds no named float32 weights"),
    ("node name is a number", graph(part(1, varint(3 << 3) + varint(1))), DAMAGED),
    ("node name is not UTF-8", graph(part(1, part(3, b"\xff"))), DAMAGED),
    ("tensor name is a number", graph(part(5, varint(8 << 3) + varint(1))), DAMAGED),
    ("tensor of too many dimensions", graph(tensor("a", [1] * 1000, ONE)), DAMAGED),
    ("huge packed dimensions", graph(part(5, part(1, b"\xff" * 2_000_000))), DAMAGED),
    ("int8 tensors only", graph(tensor("a", [4], ONE, kind=3)), "holds no named float32"),
    ("fewer bytes than said", graph(tensor("a", [4], ONE)), "holds no named float32"),
    ("more bytes than said", graph(tensor("a", [1], ONE * 2)), "holds no named float32"),
    ("not a number", graph(tensor("a", [1], struct.pack("<f", float("nan")))), "not finite"),
    ("one tensor", graph(tensor("a", [1], ONE)), "the weights have"),
]

EXPORTED: list[tuple[str, Make, str]] = [
    ("0 heads", exported(num_attention_heads=0), "num_attention_heads = 0"),
    ("5 heads", exported(num_attention_heads=5), "num_attention_heads = 5 does not divide"),
    ("heads as text", exported(num_attention_heads="4"), "num_attention_heads = '4'"),
    ("10⁹ layers", exported(num_hidden_layers=10**9), "num_hidden_layers = 1000000000"),
    ("a layer more", exported(num_hidden_layers=4), "is missing"),
    ("a layer less", exported(num_hidden_layers=2), "tensors that nobody read"),
    ("activation", exported(hidden_act="foo"), "hidden_act = 'foo'"),
    ("another family", exported(model_type="gpt2"), "they have to be of one family"),
    ("no family", exported(model_type=None), "names no model_type"),
    ("family of another type", exported(model_type=[3]), "model_type = [3]"),
    ("no class", exported(architectures=[]), "expected a class of transformers"),
    ("unknown class", exported(architectures=["Mine"]), "Mine"),
    ("class of another type", exported(architectures=[{}]), "expected a class of transformers"),
    ("missing", exported(lambda s: s.pop("embeddings.LayerNorm.weight")), "is missing"),
    (
        "transposed",
        exported(
            lambda s: s.update(
                {n: t.T.contiguous() for n, t in s.items() if "intermediate.dense.weight" in n}
            )
        ),
        "config and weights do not belong together",
    ),
    ("unknown field", exported(magic=3), "does not know: magic = 3"),
    ("quantised", exported(quantization_config={"bits": 4}), "quantization_config"),
]

CASES = [
    *(
        Case(
            name,
            "check {bad}/bad.onnx",
            says,
            steps(file("bad.onnx", data), file("config.json", json.dumps(BERT))),
        )
        for name, data, says in RAW
    ),
    *(Case(name, "check {bad}/bad.onnx", says, make) for name, make, says in EXPORTED),
    Case("no config.json", "check {bad}/bad.onnx", "has no config.json", file("bad.onnx")),
    Case(
        "a folder",
        "check {bad}/bad.onnx",
        "cannot be read",
        steps(lambda f: (f / "bad.onnx").mkdir(), file("config.json", json.dumps(BERT))),
    ),
]
