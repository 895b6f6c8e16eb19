"""Tiny configs, in the field names that most families share, for the checks of an architecture."""

from collections.abc import Mapping
from typing import Any

from unweave.model.checkpoint import Tiny


def tiny(**fields: Any) -> dict[str, Any]:
    """A config of three small layers, with changes."""
    return {
        "vocab_size": 61,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
        "initializer_range": 0.3,
        **fields,
    }


def decoder_variants(
    prefix: str,
    config: dict[str, Any],
    changes: Mapping[str, dict[str, Any]],
    language_model: str = "ForCausalLM",
) -> dict[str, Tiny]:
    """What the checks of a decoder run on: the language model in each variant, the base model.

    Args:
        prefix: Of the transformers classes ("GPTNeo").
        config: A tiny config.
        changes: What each variant changes in it; the first is what other tests run on.
        language_model: What the class with a head has behind the prefix.
    """
    variants = {
        name: Tiny(f"{prefix}{language_model}", config | change) for name, change in changes.items()
    }
    return variants | {"base model": Tiny(f"{prefix}Model", config)}


def encoder_variants(prefix: str, config: dict[str, Any]) -> dict[str, Tiny]:
    """What the checks of every encoder with a masked language model and a classifier run on.

    Args:
        prefix: Of the transformers classes ("Roberta").
        config: A tiny config.
    """
    untied = {"tie_word_embeddings": False, "hidden_act": "relu"}
    return {
        "base model": Tiny(f"{prefix}Model", config),
        "masked lm": Tiny(f"{prefix}ForMaskedLM", config),
        "masked lm, untied, relu": Tiny(f"{prefix}ForMaskedLM", config | untied),
        "classifier": Tiny(f"{prefix}ForSequenceClassification", config | {"num_labels": 3}),
    }


def rope(kind: str = "default", **fields: Any) -> dict[str, Any]:
    """Rotary parameters of a tiny config, one complete set a kind of scaling."""
    scalings: dict[str, dict[str, Any]] = {
        "default": {},
        "linear": {"factor": 4.0},
        "llama3": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
        "yarn": {"factor": 4.0, "original_max_position_embeddings": 16},
    }
    return {"rope_type": kind, "rope_theta": 10000.0, **scalings[kind], **fields}


# Families that turn only a part of each head: half of it, with another base, and all of it.
HALF_ROTARY = {"rope_parameters": rope(partial_rotary_factor=0.5)}
OTHER_BASE = {"rope_parameters": rope(rope_theta=100.0, partial_rotary_factor=0.5)}
FULL_LINEAR = {"rope_parameters": rope("linear", partial_rotary_factor=1.0)}
