"""Whether rules run as fused kernels: on a GPU with Triton, in float32; else as they are written.

`rules.py` is the twin: the same functions, one torch operation after the other.
"""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from types import ModuleType
from weakref import ReferenceType, ref

import torch
from torch import Tensor

from unweave.errors import UnweaveWarning
from unweave.model.algebra import RotaryTable, Scoring
from unweave.model.weights import Activation, Linear, Norm
from unweave.scoped import scoped

_fused: ContextVar[bool] = ContextVar("unweave_fused", default=True)


@contextmanager
def fusing(on: bool) -> Iterator[None]:
    """Within this block, fused kernels are used where they can be, or never."""
    with scoped(_fused, on):
        yield


@cache
def _kernels() -> ModuleType | None:
    """The kernels; None with one warning where Triton, or the C compiler it needs, is missing."""
    try:
        from unweave.decomposition import kernels

        kernels.check_compiler(torch.device("cuda"))
    except Exception as error:  # Triton raises what the compilers below it do
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        warnings.warn(
            f"Triton cannot be used ({reason}): rules run without fused kernels, which takes about "
            "twice the time; install triton and a C compiler",
            UnweaveWarning,
            stacklevel=4,
        )
        return None
    return kernels


def kernels_for(x: Tensor) -> ModuleType | None:
    """The kernels, if this tensor's rules can use them."""
    able = x.is_cuda and x.dtype == torch.float32 and x.numel() > 0 and _fused.get()
    return _kernels() if able else None


@cache
def _widens(device: torch.device) -> bool:
    """Whether this torch multiplies bfloat16 into float32."""
    x = torch.ones(16, 16, dtype=torch.bfloat16, device=device)
    try:
        return torch.mm(x, x.T, out_dtype=torch.float32).dtype == torch.float32
    except (RuntimeError, TypeError):
        return False


# The input that was cut last: queries, keys and values have the same.
_cut: list[tuple[ReferenceType[Tensor], int, Tensor]] = []


def linear(rel: Tensor, w: Linear) -> Tensor | None:
    """`βW` where W is stored in bfloat16 and TF32 would be allowed; None elsewhere.

    β is cut into two bfloat16 halves, which have 16 bits of it, and W is exact: one product on
    the fastest units of a GPU, more precise than TF32's 11 bits.
    """
    kernels, window = kernels_for(rel), w.window
    if kernels is None or window is None or not torch.backends.cuda.matmul.allow_tf32:
        return None
    if not window.has_halves(w.weight) or not _widens(rel.device):
        return None
    cut = next((x for seen, version, x in _cut if seen() is rel and version == rel._version), None)
    if cut is None:
        cut = kernels.halves(rel.flatten(0, -2))
        _cut[:] = [(ref(rel), rel._version, cut)]
    found = torch.mm(cut, window.twice(w.weight).T, out_dtype=torch.float32)
    return found.unflatten(0, rel.shape[:-1])


def forget() -> None:
    """Frees what is kept between two products."""
    _cut.clear()


def gate(
    rel_gate: Tensor, rel_up: Tensor, t_gate: Tensor, up: Tensor, f: Activation, out: Tensor
) -> Tensor | None:
    """`rules.gate_removal` in one pass; None where it has to run as it is written."""
    kernels = kernels_for(rel_gate)
    if kernels is None or f.name not in kernels.ACTIVATIONS:
        return None
    return kernels.gate(rel_gate, rel_up, t_gate, up, out, f.name, _parameter(f))


def activation(rel: Tensor, total: Tensor, f: Activation, out: Tensor) -> Tensor | None:
    """`rules.activation_secant` in one pass; None as for `gate`."""
    kernels = kernels_for(rel)
    if kernels is None or f.name not in kernels.ACTIVATIONS:
        return None
    return kernels.gate(rel, None, total, None, out, f.name, _parameter(f))


def norm(rel: Tensor, total: Tensor, w: Norm, out: Tensor) -> Tensor | None:
    """`rules.norm_removal` in one pass; None as for `gate`."""
    kernels = kernels_for(rel)
    return None if kernels is None else kernels.norm(rel, total, w, out)


def rotate(rel: Tensor, table: RotaryTable) -> Tensor | None:
    """`rotate_pairs` in one pass; None as for `gate`."""
    kernels = kernels_for(rel)
    return None if kernels is None else kernels.rotate(rel, table)


def attention(
    rels: tuple[Tensor, Tensor, Tensor],
    totals: tuple[Tensor, Tensor, Tensor, Tensor],
    scoring: Scoring,
    start: int,
) -> Tensor | None:
    """`rules.attention_removal` in one pass; None as for `gate`, and for long prompts."""
    kernels = kernels_for(rels[0])
    if kernels is None:
        return None
    queries, heads, width = rels[0].shape[2:]
    keys, kv_heads = totals[1].shape[1:3]
    if not kernels.fits_attention(queries, keys, heads // kv_heads, width):
        return None
    tf32 = torch.backends.cuda.matmul.allow_tf32
    mask, bias = scoring.mask, scoring.bias
    return kernels.attention(rels, totals, mask, bias, scoring.scale, scoring.softcap, start, tf32)


def _parameter(f: Activation) -> float:
    if f.parameter is not None:
        return f.parameter
    return math.sqrt(2 / math.pi)
