"""`compare`: does our forward pass compute what transformers computes, and if not, where from?"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Bool
from torch import Tensor

from unweave.errors import UnweaveError
from unweave.model.algebra import Plain
from unweave.model.program import Inputs, Stage, Stream, stages
from unweave.model.weights import Linear, Network, Norm
from unweave.testing.inputs import Padding, random_inputs
from unweave.testing.oracle import block_modules, forward

LENGTHS = (5, 12)
# Rounding steps that an output may be off by, times √(terms of a sum × components): rounding
# errors add up like a random walk. CPUs differ in the order of their sums, so there is room.
_STEPS = 32
# transformers keeps some constants (rotary frequencies) in float32 whatever the model's dtype.
_FLOAT64 = 1e-10


@dataclass(frozen=True)
class Delta:
    """How far one component is off on one batch.

    Args:
        case: The batch: "12 tokens, padded".
        component: "embed", "block 3", "logits", with "enc." in front in an encoder.
        worst: max |ours − theirs| over real tokens.
        bound: What it may be, relative to the largest value compared: residual streams reach
            thousands in trained models.
    """

    case: str
    component: str
    worst: float
    bound: float

    @property
    def passed(self) -> bool:
        return self.worst <= self.bound  # false for NaN


@dataclass(frozen=True)
class Parity:
    """The outcome of a comparison.

    Args:
        name: What was compared.
        deltas: Per batch and component, along the forward pass.
        agreement: Share of real tokens at which the largest output is the same one.
        divergence: The first component that is off, as closely as it could be found.
    """

    name: str
    deltas: tuple[Delta, ...]
    agreement: float
    divergence: str | None = None

    @property
    def passed(self) -> bool:
        return all(delta.passed for delta in self.deltas)

    @property
    def output(self) -> str:
        """The last component: "logits" or "hidden states"."""
        return self.deltas[-1].component

    @property
    def worst(self) -> float:
        """The largest |Δ| of the output."""
        return max(delta.worst for delta in self.deltas if delta.component == self.output)

    def __str__(self) -> str:
        if self.passed:
            return f"{self.name}: agrees, max |Δ| {self.worst:.1e}"
        return f"{self.name}: {self.divergence}; output max |Δ| {self.worst:.1e}"


def find_parity(
    network: Network,
    oracle: Any,
    name: str = "",
    tolerance: float | None = None,
    lengths: Sequence[int] = LENGTHS,
) -> Parity:
    """Compares the output and every block's output on random inputs of two lengths, unpadded and
    padded: on the right and, for decoders, in another row on the left.

    Args:
        network: Ours.
        oracle: A transformers model with the same weights.
        name: How the report calls it.
        tolerance: Bound on max |Δ|, relative to the largest value of a component; by default what
            rounding explains (`relative_bound`).
        lengths: Positions of the batches.

    Raises:
        UnweaveError: For a config that denies the encoder, or that transformers cannot run.
    """
    said = getattr(oracle.config, "is_encoder_decoder", False)
    if said is not (network.encoder is not None):
        raise UnweaveError(
            f"is_encoder_decoder = {said!r} in the config, and the model has "
            f"{'an' if network.encoder else 'no'} encoder beside its decoder: correct the config"
        )
    bound = relative_bound(network) if tolerance is None else tolerance
    deltas: list[Delta] = []
    agreements: list[float] = []
    divergence = None
    for case, inputs in _cases(network, oracle.config, lengths):
        found, agreement = _deltas(network, oracle, case, inputs, bound)
        deltas += found
        agreements.append(agreement)
        first = next((delta for delta in found if not delta.passed), None)
        if first is not None and divergence is None:
            place = _locate(network, oracle, inputs, first.component, bound)
            divergence = (
                f"first diverges at {place} ({case}): "
                f"|Δ| {first.worst:.1e}, expected at most {first.bound:.1e}"
            )
    return Parity(name, tuple(deltas), sum(agreements) / len(agreements), divergence)


def relative_bound(network: Network) -> float:
    """How far rounding alone may move a component, relative to its largest value.

    Raises:
        UnweaveError: For a dtype in which rounding says nothing about correctness.
    """
    if network.dtype == torch.float64:
        return _FLOAT64
    if network.dtype != torch.float32:
        raise UnweaveError(f"no tolerance is known for {network.dtype}: pass tolerance=…")
    blocks = network.body.blocks + (network.encoder.blocks if network.encoder else ())
    width = blocks[0].attention.q.shape[1]
    return _STEPS * torch.finfo(network.dtype).eps * math.sqrt(width * (len(blocks) + 2))


def _cases(network: Network, config: Any, lengths: Sequence[int]) -> Iterator[tuple[str, Inputs]]:
    dtype = network.dtype
    if network.body.embedding.patches is not None:
        yield "images", random_inputs(config, 0, dtype=dtype)
        return
    # Elsewhere transformers has no way to say where the tokens of a row begin.
    decoder = network.encoder is None and network.body.blocks[0].attention.causal
    sides: tuple[Padding, ...] = ("none", "either" if decoder else "right")
    for seed, length in enumerate(lengths):
        for side in sides:
            padded = "" if side == "none" else ", padded"
            yield f"{length} tokens{padded}", random_inputs(config, length, side, dtype, seed)


def _deltas(
    network: Network, oracle: Any, case: str, inputs: Inputs, bound: float
) -> tuple[list[Delta], float]:
    blocks = block_modules(oracle, network)
    outputs = {f"{pre}block {i}": m for pre, ms in blocks.items() for i, m in enumerate(ms)}
    entries = {f"{prefix}embed": modules[0] for prefix, modules in blocks.items()}
    output, theirs = forward(oracle, inputs, outputs, entries)
    deltas, last = [], "logits" if network.head.steps else "hidden states"
    agreement = 0.0
    for stage, _, stream in _run(network, inputs):
        real = (inputs if stage.stack == "enc" or inputs.decoder is None else inputs.decoder).mask
        if stage.name == "head":
            # transformers drops an axis of 1: a classifier's position, a discriminator's output.
            if output.ndim < stream.x.ndim and output.numel() == stream.x.numel():
                output = output.reshape(stream.x.shape)
            real = real[:, : output.shape[1]]
            worst, size = _distance(stream.x, output, real, last)
            deltas.append(Delta(case, last, worst, bound * size))
            same = (stream.x.argmax(-1) == output.argmax(-1))[real]
            agreement = same.double().mean().item()
        elif stage.name in theirs:
            worst, size = _distance(stream.x, theirs[stage.name], real, stage.name)
            deltas.append(Delta(case, stage.name, worst, bound * size))
    return deltas, agreement


def _run(network: Network, inputs: Inputs) -> Iterator[tuple[Stage, Stream | None, Stream]]:
    """Our forward pass: each stage, what entered it and what it left."""
    stream: Stream | None = None
    with torch.no_grad():
        for stage in stages(network, inputs):
            before, stream = stream, stage.apply(Plain(), stream)
            yield stage, before, stream


def _distance(
    ours: Tensor, theirs: Tensor, real: Bool[Tensor, "batch position"], component: str
) -> tuple[float, float]:
    if ours.shape != theirs.shape:
        raise UnweaveError(
            f"{component} has shape {tuple(ours.shape)}, in transformers {tuple(theirs.shape)}"
        )
    ours, theirs = ours[real].double(), theirs[real].double()
    return (ours - theirs).abs().max().item(), theirs.abs().max().item()


class _Recording(Plain):
    """Keeps the output of every linear map and norm, in order, with the record that it is of."""

    def __init__(self) -> None:
        self.outputs: list[tuple[str, Tensor, Tensor]] = []

    def linear(self, x: Tensor, w: Linear, place: str) -> Tensor:
        return self._keep(super().linear(x, w, place), w.weight, place)

    def norm(self, x: Tensor, w: Norm, place: str) -> Tensor:
        return self._keep(super().norm(x, w, place), w.weight, place)

    def _keep(self, y: Tensor, weight: Tensor | None, place: str) -> Tensor:
        if weight is not None:
            self.outputs.append((place, weight, y))
        return y


def _locate(network: Network, oracle: Any, inputs: Inputs, component: str, bound: float) -> str:
    """Narrows a block down to its first linear map or norm that is off.

    Ours and transformers' belong together when they share memory, so no module names are needed;
    maps that the checkpoint fuses have no module of their own and are passed over.
    """
    run = list(_run(network, inputs))
    names = [stage.name for stage, _, _ in run]
    # The output has no stage of its own name: the final norm and the head, the last two, make it.
    suspects = [run[names.index(component)]] if component in names else run[-2:]
    recording, stream = _Recording(), suspects[0][1]
    with torch.no_grad():
        for stage, _, _ in suspects:
            stream = stage.apply(cast(Any, recording), stream)
    modules = {
        module.weight.data_ptr(): module
        for module in oracle.modules()
        if isinstance(getattr(module, "weight", None), Tensor)
    }
    wanted = {weight.data_ptr() for _, weight, _ in recording.outputs}
    _, theirs = forward(oracle, inputs, {p: m for p, m in modules.items() if p in wanted}, {})
    masks = [inputs.mask] if inputs.decoder is None else [inputs.decoder.mask, inputs.mask]
    for place, weight, ours in recording.outputs:
        other = theirs.get(weight.data_ptr())
        if other is None or other.shape[-1] != ours.shape[-1] or other.numel() != ours.numel():
            continue
        # Keys and values of cross-attention are at the encoder's positions; its length differs.
        real = next(mask for mask in masks if mask.shape == ours.shape[:2])
        worst, size = _distance(ours, other.reshape(ours.shape), real, component)
        if not worst <= bound * size:
            return f"{component}, {place}"
    return component


__all__ = ["LENGTHS", "Delta", "Parity", "find_parity", "relative_bound"]
