"""Damaged or lying safetensors, .bin and .pth files."""

import json
import pickle  # noqa: TID251 - writes what must not be unpickled
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from bad_input.case import Case, Make, damaged, edit, file, folder, steps, tensors
from oracles.tiny_folders import lens_folder, lens_state

LN = "transformer.h.1.ln_1.weight"


def header(change: Callable[[dict[str, Any]], object]) -> Make:
    """Changes a safetensors file's header and leaves its bytes as they are."""

    def rewrite(data: bytes) -> bytes:
        size = int.from_bytes(data[:8], "little")
        fields = json.loads(data[8 : 8 + size])
        change(fields)
        text = json.dumps(fields).encode()
        return len(text).to_bytes(8, "little") + text + data[8 + size :]

    return damaged("model.safetensors", rewrite)


def weights(change: Callable[[bytes], bytes]) -> Make:
    return damaged("model.safetensors", change)


def as_bin(state: Any) -> Make:
    """A folder whose weights are pytorch_model.bin with this content."""

    def make(target: Path) -> None:
        (target / "model.safetensors").unlink()
        torch.save(state, target / "pytorch_model.bin")

    return steps(folder("gpt2"), make)


def bin_bytes(data: bytes) -> Make:
    return steps(
        folder("gpt2"),
        lambda f: (f / "model.safetensors").unlink(),
        file("pytorch_model.bin", data),
    )


def lens(change: Callable[[dict[str, Any]], object] = lambda state: None, **fields: Any) -> Make:
    """A TransformerLens checkpoint with its state dict and config changed."""

    def make(target: Path) -> None:
        lens_folder(target)
        state = lens_state()
        change(state)
        torch.save(state, target / "model_final.pth")
        edit("config.json", **fields)(target)

    return make


class Payload:
    """Would run code when unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("payload-ran"),))


SAFETENSORS: list[tuple[str, Make, str]] = [
    ("none", lambda f: (f / "model.safetensors").unlink(), "has no *.safetensors"),
    ("empty", weights(lambda b: b""), "is not a whole safetensors file"),
    ("length only", weights(lambda b: b[:8]), "is not a whole safetensors file"),
    ("half", weights(lambda b: b[: len(b) // 2]), "is not a whole safetensors file"),
    ("last byte gone", weights(lambda b: b[:-1]), "is not a whole safetensors file"),
    ("one byte more", weights(lambda b: b + b"x"), "is not a whole safetensors file"),
    ("huge header", weights(lambda b: b"\xff" * 7 + b"\x7f" + b[8:]), "is not a whole"),
    ("header is not JSON", weights(lambda b: b[:8] + b"x" + b[9:]), "is not a whole"),
    ("text", weights(lambda b: b"hello"), "is not a whole safetensors file"),
    ("int8 header", header(lambda h: h[LN].update(dtype="I8", shape=[96])), "stored as I8"),
    ("int32 for float32", header(lambda h: h[LN].update(dtype="I32")), "stored as I32"),
    ("bool header", header(lambda h: h[LN].update(dtype="BOOL", shape=[96])), "stored as BOOL"),
    ("unknown dtype", header(lambda h: h[LN].update(dtype="F33")), "is not a whole"),
    ("other shape", header(lambda h: h[LN].update(shape=[12, 2])), "has shape [12, 2]"),
    ("shape of other size", header(lambda h: h[LN].update(shape=[23])), "is not a whole"),
    ("negative shape", header(lambda h: h[LN].update(shape=[-24])), "is not a whole"),
    ("overlap", header(lambda h: h[LN].update(data_offsets=[0, 96])), "is not a whole"),
    ("past the end", header(lambda h: h[LN].update(data_offsets=[0, 10**12])), "is not a whole"),
    ("float64 as int64", tensors(lambda s: s.update({LN: s[LN].long()})), "stored as I64"),
    ("int8 weights", tensors(lambda s: s.update({LN: s[LN].to(torch.int8)})), "stored as I8"),
    (
        "float8 weights",
        tensors(lambda s: s.update({LN: s[LN].to(torch.float8_e4m3fn)})),
        "stored as F8_E4M3",
    ),
    ("missing", tensors(lambda s: s.pop(LN)), f"lacks weights for GPT2LMHeadModel: {LN}"),
    ("unknown", tensors(lambda s: s.update(magic=torch.ones(3))), "unknown weights"),
    ("transposed", tensors(lambda s: s.update({LN: s[LN][None]})), "has shape [1, 24]"),
    ("empty tensor", tensors(lambda s: s.update({LN: s[LN][:0]})), "has shape [0]"),
    ("no tensors at all", tensors(lambda s: s.clear()), "the weights have 0 tensors"),
    (
        "index that names no file",
        steps(
            lambda f: (f / "model.safetensors").rename(f / "model-1.safetensors"),
            file("model.safetensors.index.json", '{"weight_map": {"a": "gone.safetensors"}}'),
        ),
        "cannot be read by transformers",
    ),
    (
        "index that is not JSON",
        steps(
            lambda f: (f / "model.safetensors").rename(f / "model-1.safetensors"),
            file("model.safetensors.index.json", "{"),
        ),
        "cannot be read by transformers",
    ),
    (
        "a folder of that name",
        steps(
            lambda f: (f / "model.safetensors").unlink(),
            lambda f: (f / "model.safetensors").mkdir(),
        ),
        "is not a whole safetensors file",
    ),
]

OTHERS: list[tuple[str, Make, str]] = [
    ("bin: empty", bin_bytes(b""), "is not a whole state dict"),
    ("bin: text", bin_bytes(b"hello"), "is not a whole state dict"),
    ("bin: code", bin_bytes(pickle.dumps(Payload())), "is not a whole state dict"),
    ("bin: code inside", as_bin({LN: Payload()}), "is not a whole state dict"),
    ("bin: a list", as_bin([torch.ones(3)]), "expected tensors by name"),
    ("bin: a number", as_bin({LN: 3}), "expected tensors by name"),
    ("bin: names are numbers", as_bin({3: torch.ones(3)}), "expected tensors by name"),
    ("bin: int8", as_bin({LN: torch.ones(24, dtype=torch.int8)}), "stored as int8"),
    ("bin: one tensor", as_bin({LN: torch.ones(24)}), "n_layer = 3: the weights have 1 tensors"),
    ("bin: none", as_bin({}), "the weights have 0 tensors"),
    (
        "bin: another name",
        steps(folder("gpt2"), lambda f: (f / "model.safetensors").rename(f / "adapter_model.bin")),
        "has no pytorch_model.bin",
    ),
    (
        "bin: index outside of the folder",
        steps(
            bin_bytes(b""),
            file("pytorch_model.bin.index.json", '{"weight_map": {"a": "../x.bin"}}'),
        ),
        "has no ../x.bin",
    ),
    (
        "bin: index without weight_map",
        steps(bin_bytes(b""), file("pytorch_model.bin.index.json", "{}")),
        "has no weight_map",
    ),
    (
        "bin: index of numbers",
        steps(bin_bytes(b""), file("pytorch_model.bin.index.json", '{"weight_map": {"a": 3}}')),
        "has no weight_map",
    ),
]

LENS: list[tuple[str, Make, str]] = [
    ("no .pth", steps(lens(), lambda f: (f / "model_final.pth").unlink()), "one .pth file"),
    ("text", steps(lens(), file("model_final.pth", "hello")), "is not a whole state dict"),
    ("code", lens(lambda s: s.update(a=Payload())), "is not a whole state dict"),
    ("0 heads", lens(n_heads=0), "n_heads = 0: expected a whole number"),
    ("5 heads", lens(n_heads=5), "config and weights do not belong together"),
    ("other d_head", lens(d_head=3), "config and weights do not belong together"),
    ("d_head of another type", lens(d_head="4"), "d_head = '4': expected a whole number"),
    ("2 layers", lens(n_layers=2), "tensor 'blocks.1.attn.W_Q' is missing"),
    ("10⁹ layers", lens(n_layers=10**9), "n_layers = 1000000000: the weights have"),
    ("eps", lens(eps="x"), "eps = 'x': expected a number"),
    ("normalisation", lens(normalization_type="BN"), "normalization_type = 'BN'"),
    ("activation", lens(act_fn="foo", attn_only=False), "act_fn = 'foo'"),
    ("shape", lens(lambda s: s.update({"unembed.W_U": torch.ones(7, 61)})), "the head has shape"),
    (
        "int8",
        lens(lambda s: s.update({"embed.W_E": s["embed.W_E"].to(torch.int8)})),
        "stored as int8",
    ),
    (
        "one axis less",
        lens(lambda s: s.update({"embed.W_E": torch.ones(8)})),
        "do not belong together",
    ),
]

CASES = [
    *(
        Case(f"safetensors: {name}", "check {bad}", says, steps(folder("gpt2"), make))
        for name, make, says in SAFETENSORS
    ),
    *(Case(name, "check {bad}", says, make) for name, make, says in OTHERS),
    *(
        Case(f"TransformerLens: {name}", "attribute hello --model {bad}", says, make)
        for name, make, says in LENS
    ),
    Case(
        "TransformerLens: nothing to compare with",
        "check {bad}",
        "transformers has no class to compare it with",
        lens(),
    ),
]
