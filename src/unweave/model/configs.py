"""config.json, checked before transformers builds anything from it.

transformers trusts its configs: heads = 0 divides by zero somewhere inside, 10⁹ layers are built
one by one, an unknown activation is a KeyError. Here every size is a count that fits the stored
tensors, and an error names the field.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from unweave.errors import UnweaveError
from unweave.model.checkpoint import ACTIVATIONS
from unweave.model.positions import ROPE_KINDS
from unweave.registry import nearest

# Names and shapes of the stored tensors.
Shapes = Mapping[str, Sequence[int]]

_LAYERS = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "encoder_layers",
    "decoder_layers",
    "num_decoder_layers",
)
_HEADS = (
    "num_attention_heads",
    "n_head",
    "n_heads",
    "num_heads",
    "encoder_attention_heads",
    "decoder_attention_heads",
)
_WIDTHS = ("hidden_size", "n_embd", "d_model", "dim")
_OTHER_SIZES = (
    "num_key_value_heads",
    "head_dim",
    "d_kv",
    "d_head",
    "intermediate_size",
    "n_inner",
    "hidden_dim",
    "ffn_dim",
    "d_ff",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "rotary_dim",
    "embedding_size",
    "vocab_size",
    "num_labels",
)
_POSITIONS = ("max_position_embeddings", "n_positions")
_ACTIVATION_FIELDS = ("hidden_act", "activation_function", "hidden_activation", "activation")
_ROPE_FIELDS = ("rope_parameters", "rope_scaling")
_EPS = ("layer_norm_epsilon", "layer_norm_eps", "rms_norm_eps", "norm_epsilon", "eps")
_BASES = ("rope_theta", "rotary_emb_base", "rope_local_base_freq")
_SHARES = ("rotary_pct", "partial_rotary_factor")
# Attributes that give a head its own width, which then need not divide the model's.
_OWN_WIDTH = ("head_dim", "d_kv", "d_head")

_MOST_POSITIONS = 1 << 23  # twice the longest context published; tables of positions are built
_POSITION_TABLE = re.compile(r"(.*\.)?(wpe|embed_positions|position_embeddings)\.weight")


def check_fields(config: Mapping[str, Any], where: Path | str) -> None:
    """Raises unless every known field has a value of its kind."""
    for name, value in _numbers(config):
        if not math.isfinite(value):
            raise _wrong(where, name, value, "expected a finite number")
    for name in (*_LAYERS, *_HEADS, *_WIDTHS, *_OTHER_SIZES, *_POSITIONS):
        required = name in (*_LAYERS, *_HEADS, *_WIDTHS)
        if name in config and (required or config[name] is not None):
            _check_count(where, name, config[name])
    for name in _POSITIONS:
        if (config.get(name) or 0) > _MOST_POSITIONS:
            raise _wrong(where, name, config[name], f"expected at most {_MOST_POSITIONS}")
    for name in _EPS:
        if name in config and not (_is_number(config[name]) and config[name] >= 0):
            raise _wrong(where, name, config[name], "expected a number of at least 0")
    for name in _BASES:
        if name in config and not (_is_number(config[name]) and config[name] > 0):
            raise _wrong(where, name, config[name], "expected a positive number")
    for name in _SHARES:
        share = config.get(name)
        if share is not None and not (_is_number(share) and 0 < share <= 1):
            raise _wrong(where, name, share, "expected a share between 0 and 1")
    for name in _ACTIVATION_FIELDS:
        activation = config.get(name)
        if activation is not None and activation not in [*ACTIVATIONS]:
            raise _wrong(where, name, activation, nearest(str(activation), ACTIVATIONS))
    for name in _ROPE_FIELDS:
        _check_rope(where, name, config.get(name))


def check_family(config: Mapping[str, Any], where: Path | str) -> str:
    """The model_type, once it and the class are named as strings."""
    model_type, classes = config.get("model_type"), config.get("architectures")
    if not model_type:
        raise UnweaveError(f"{where} names no model_type: which family is it?")
    if not isinstance(model_type, str):
        raise _wrong(where, "model_type", model_type, 'expected a name such as "llama"')
    named = isinstance(classes, list) and bool(classes) and isinstance(classes[0], str)
    if not named:
        raise UnweaveError(
            f"{where} says architectures = {classes!r}: expected a class of transformers in a "
            'list, such as ["LlamaForCausalLM"]; write it there'
        )
    if config.get("quantization_config"):
        raise UnweaveError(
            f"{where} has a quantization_config: its weights are packed for another library. Load "
            "the unquantised checkpoint, or a .gguf file of the model"
        )
    return model_type


def check_heads(config: Mapping[str, Any], where: Path | str) -> None:
    """Raises unless heads divide the width, and key-value heads the heads.

    Args:
        config: With every field, defaults included: some families have a width of their own.
    """
    if not any(config.get(name) for name in _OWN_WIDTH):
        for width in (name for name in _WIDTHS if config.get(name)):
            for heads in (name for name in _HEADS if config.get(name)):
                if config[width] % config[heads]:
                    raise UnweaveError(
                        f"{where}: {heads} = {config[heads]} does not divide {width} = "
                        f"{config[width]}: is it the config of these weights?"
                    )
    groups = config.get("num_key_value_heads")
    if groups and config.get("num_attention_heads", groups) % groups:
        raise UnweaveError(
            f"{where}: num_key_value_heads = {groups} does not divide num_attention_heads = "
            f"{config['num_attention_heads']}: is it the config of these weights?"
        )


def check_sizes(config: Mapping[str, Any], stored: Shapes, where: Path | str) -> None:
    """Raises for a count that the stored tensors cannot have, before anything is built from it."""
    largest = max((size for shape in stored.values() for size in shape), default=0)
    tables = [s[0] for n, s in stored.items() if _POSITION_TABLE.fullmatch(n) and s]
    bounds = (
        (_LAYERS, len(stored), "tensors"),
        ((*_HEADS, *_WIDTHS, *_OTHER_SIZES), largest, "rows in the largest tensor"),
        (_POSITIONS, max(tables, default=_MOST_POSITIONS), "learned positions"),
    )
    for names, most, what in bounds:
        for name in names:
            value = config.get(name)
            if value is not None and value > most:
                raise _wrong(
                    where,
                    name,
                    value,
                    f"the weights have {most} {what}; is it the config of these weights?",
                )


def _check_count(where: Path | str, name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _wrong(where, name, value, "expected a whole number of at least 1")


def _check_rope(where: Path | str, name: str, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, Mapping):
        raise _wrong(where, name, value, "expected an object with rope_type and its parameters")
    if value and all(isinstance(part, Mapping) for part in value.values()):
        for kind, part in value.items():  # one set a layer type
            _check_rope(where, f"{name}.{kind}", part)
        return
    kind = value.get("rope_type", value.get("type", "default"))
    if kind not in [*ROPE_KINDS]:
        known = " or ".join(ROPE_KINDS)
        raise _wrong(where, f"{name}.rope_type", kind, f"not supported: expected {known}")
    given = [field for field in ("rope_theta",) if field in value]
    for field in (*given, *ROPE_KINDS[kind]):
        if not (_is_number(value.get(field)) and value[field] > 0):
            raise _wrong(where, f"{name}.{field}", value.get(field), "expected a positive number")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _numbers(config: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, float):
            yield f"{prefix}{name}", value


def _wrong(where: Path | str, name: str, value: Any, expected: str) -> UnweaveError:
    return UnweaveError(f"{where}: {name} = {value!r}: {expected}")
