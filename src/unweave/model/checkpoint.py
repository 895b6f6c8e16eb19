"""A strict reader: every config field and every tensor is either read or explained.

An architecture file maps a `Checkpoint` to a `Network`. What it did not read is an error, so a
new option of a model family cannot be dropped in silence.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor

from unweave.errors import UnweaveError
from unweave.model.shapes import check_shapes
from unweave.model.weights import Activation, ActivationName, Linear, Network, Norm, tensors
from unweave.registry import Registry, nearest

# Fields that cannot change what a forward pass in evaluation mode computes.
_HARMLESS = re.compile(
    r"""_.* | .*dropout.* | .*_pdrop | .*drop(_rate|_path_rate)? | layerdrop | .*initializer.*
      | init_std | .*_token_id | .*_token_index | use_cache | use_return_dict | return_dict
      | output_(attentions|hidden_states|past) | (torch_)?dtype | architectures
      | transformers_version | model_type | name_or_path | gradient_checkpointing | pretraining_tp
      | chunk_size_feed_forward | is_encoder_decoder | tie_.*embeddings | problem_type
      | id2label | label2id | num_labels | vocab_size | task_specific_params | summary_.*
      | max_position_embeddings | n_positions | n_ctx | max_length | auto_map | finetuning_task
      | keys_to_ignore_at_inference | tokenizer_class | prefix | unk_index | bad_words_ids
      | base_model_.*_plan | attn_implementation | experts_implementation | quantization_config
      | static_position_embeddings | normalize_embedding | num_hidden_layers""",
    re.VERBOSE,
)

ACTIVATIONS: dict[str, ActivationName] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python": "gelu",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}

_MISSING = object()
_LONGEST_REASON = 200


@dataclass(frozen=True, eq=False)
class Tiny:
    """A small config for tests: a transformers class and the fields that make it tiny."""

    model_class: str
    config: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Architecture:
    """One family.

    Args:
        read: Maps a checkpoint to a network.
        tiny: Config variants for `check_architecture`, by name.
        wrong: A config change that must make parity fail: the negative control.
        needs_bos: Whether the family does badly without a BOS token in front.
        gguf: GGUF's name of the family, when files of it can be read.
    """

    read: "Callable[[Checkpoint], Network]"
    tiny: Mapping[str, Tiny]
    wrong: Mapping[str, Any]
    needs_bos: bool = False
    gguf: str | None = None


architectures: Registry[Architecture] = Registry("architecture", "unweave.model.architectures")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Config and tensors of one model, with a record of what was read.

    Args:
        config: The checkpoint's config as a plain dict.
        defaults: The defaults of its config class: a field at its default is harmless.
        tensors: State dict, by name.
        model_class: The transformers class it is an instance of ("GPT2LMHeadModel").
    """

    config: Mapping[str, Any]
    defaults: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    model_class: str
    _fields_read: set[str] = field(default_factory=set)
    _tensors_read: set[str] = field(default_factory=set)

    def get(self, name: str, default: Any = _MISSING) -> Any:
        """A config field; without a default its absence is an error."""
        self._fields_read.add(name)
        if name in self.config:
            return self.config[name]
        if default is _MISSING:
            raise UnweaveError(f"config field {name!r} is missing: is the config complete?")
        return default

    def expect(self, name: str, *allowed: Any) -> None:
        """A field that must have one of the values this mapping implements."""
        value = self.get(name, allowed[0])
        if value not in allowed:
            wanted = " or ".join(map(repr, allowed))
            raise UnweaveError(
                f"config field {name} = {value!r} is not supported for "
                f"{self.model_class}: expected {wanted}"
            )

    def activation(self, name: str) -> Activation:
        """The activation that a config field names."""
        value = self.get(name)
        if value not in [*ACTIVATIONS]:
            raise UnweaveError(f"{name} = {value!r}: {nearest(str(value), ACTIVATIONS)}")
        return Activation(ACTIVATIONS[value])

    def has(self, name: str) -> bool:
        """Whether a tensor, or any tensor under a prefix that ends in a dot, is there."""
        return name in self.tensors or (
            name.endswith(".") and any(key.startswith(name) for key in self.tensors)
        )

    def root(self, prefix: str) -> str:
        """The prefix of the base model's tensors: empty where the checkpoint is the base model."""
        return prefix if self.has(prefix) else ""

    def tensor(self, name: str) -> Float[Tensor, "..."]:
        if name not in self.tensors:
            raise UnweaveError(f"tensor {name!r} is missing: {nearest(name, self.tensors)}")
        self._tensors_read.add(name)
        return self.tensors[name]

    def maybe(self, name: str) -> Float[Tensor, "..."] | None:
        return self.tensor(name) if name in self.tensors else None

    def linear(self, name: str, transposed: bool = False) -> Linear:
        """`name.weight` and, where there is one, `name.bias`; GPT-2 stores weights transposed."""
        weight = self.tensor(f"{name}.weight")
        return Linear(weight.T if transposed else weight, self.maybe(f"{name}.bias"))

    def fused(self, name: str, sizes: tuple[int, ...], transposed: bool = False) -> list[Linear]:
        """Several linear maps that the checkpoint stores one below the other."""
        whole = self.linear(name, transposed)
        weights = whole.weight.split(sizes)
        biases = [None] * len(sizes) if whole.bias is None else whole.bias.split(sizes)
        return [Linear(w, b) for w, b in zip(weights, biases, strict=True)]

    def interleaved(self, name: str, heads: int, parts: int = 3) -> list[Linear]:
        """q, k, v stored head by head: rows ordered (head, part, d_head)."""
        whole = self.linear(name)
        weights = whole.weight.unflatten(0, (heads, parts, -1)).unbind(1)
        bias = whole.bias
        biases = [None] * parts if bias is None else bias.unflatten(0, (heads, parts, -1)).unbind(1)
        return [Linear(w, b) for w, b in zip(weights, biases, strict=True)]

    def norm(
        self,
        name: str,
        kind: Literal["layer", "rms"],
        eps: float,
        shift: float = 0.0,
        learned: bool = True,
    ) -> Norm:
        """`name.weight` and, where there is one, `name.bias`; neither where nothing is learned."""
        if not learned:
            return Norm(kind, eps, shift=shift)
        return Norm(kind, eps, self.tensor(f"{name}.weight"), self.maybe(f"{name}.bias"), shift)

    def skip(self, pattern: str) -> None:
        """Marks tensors as known and unused (stored masks, heads that this class ignores)."""
        self._tensors_read.update(name for name in self.tensors if re.fullmatch(pattern, name))

    def finish(self) -> None:
        """Raises for a config field or tensor that nobody read."""
        unknown = [
            f"{name} = {value!r}"
            for name, value in self.config.items()
            if name not in self._fields_read
            and not _HARMLESS.fullmatch(name)
            and not (name in self.defaults and self.defaults[name] == value)
        ]
        if unknown:
            raise UnweaveError(
                f"{self.model_class}: config fields that unweave does not know: "
                f"{', '.join(unknown)}. Teach its file in model/architectures to read them."
            )
        unread = [name for name in self.tensors if name not in self._tensors_read]
        if unread:
            raise UnweaveError(
                f"{self.model_class}: tensors that nobody read: {', '.join(unread[:4])}"
                f"{' …' if len(unread) > 4 else ''} ({len(unread)} in all). "
                "Teach its file in model/architectures to read them."
            )


def architecture(model_type: str) -> Architecture:
    """The architecture of a `model_type`.

    Raises:
        UnweaveError: When there is none, with the nearest and how to add it.
    """
    if model_type not in architectures:
        raise UnweaveError(
            f"architecture {model_type!r} is not supported: "
            f"{nearest(model_type, architectures)} To add it, write "
            "src/unweave/model/architectures/<family>.py (see CONTRIBUTING.md)."
        )
    return architectures[model_type]


def read_network(model_type: str, checkpoint: Checkpoint) -> Network:
    """Maps a checkpoint to a network through its architecture's file, strictly."""
    family = architecture(model_type)
    try:
        network = family.read(checkpoint)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as e:
        # A family's file trusts the config's types and the tensors' axes.
        reason = " ".join(str(e).split())[:_LONGEST_REASON]
        raise UnweaveError(
            f"{checkpoint.model_class}: config and weights do not belong together "
            f"({type(e).__name__}: {reason}); fetch both again"
        ) from e
    checkpoint.finish()
    _check_dtype(network)
    check_shapes(network)
    return network


def _check_dtype(network: Network) -> None:
    for tensor in tensors(network):
        if not tensor.is_floating_point():
            raise UnweaveError(
                f"weights are {tensor.dtype}: expected a float type; load an unquantised checkpoint"
            )


__all__ = [
    "ACTIVATIONS",
    "Architecture",
    "Checkpoint",
    "Tiny",
    "architecture",
    "architectures",
    "read_network",
]
