"""`x Wᵀ + b`, by the fastest kernel that this machine has for it.

torch multiplies float32 matrices on a CPU with MKL, which leaves AVX-512 unused on processors of
other makers than Intel. oneDNN, which torch brings along too, does not: 2.5 times as fast on an AMD
EPYC (`benchmarks/products.py`), in the same precision. With AVX2 alone MKL is the faster one: on an
EPYC of an earlier generation 1.1 times in a forward pass, 1.3 times in a backward pass.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

_ONEDNN = (
    torch.backends.mkldnn.is_available()
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    and torch.backends.cpu.get_cpu_capability() == "AVX512"
)


def linear(
    x: Float[Tensor, "*lead d_in"],
    weight: Float[Tensor, "d_out d_in"],
    bias: Float[Tensor, " d_out"] | None = None,
) -> Float[Tensor, "*lead d_out"]:
    """As `torch.nn.functional.linear`; gradients flow to x alone where oneDNN computes it."""
    here = x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
    if not (_ONEDNN and here and x.numel() and _dense(weight)) or weight.requires_grad:
        return functional.linear(x, weight, bias)
    return _Linear.apply(x, weight, bias)


def _dense(weight: Float[Tensor, "d_out d_in"]) -> bool:
    """Whether it is a whole matrix in memory, as it is or transposed.

    GPT-2's query, key and value are columns of one matrix. For such a weight oneDNN falls back to
    a kernel that takes hundreds of times as long as MKL's.
    """
    return weight.is_contiguous() or weight.T.is_contiguous()


class _Linear(torch.autograd.Function):
    """oneDNN's product; torch knows no derivative of it."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")

    @staticmethod
    def backward(ctx, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        return linear(grad_outputs[0], weight.T), None, None
