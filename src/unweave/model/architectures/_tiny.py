"""Tiny configs, in the field names that most families share, for the checks of an architecture."""

from typing import Any


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
