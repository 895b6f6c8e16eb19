"""`x Wᵀ + b`, by the fastest kernel that this machine has for it.

torch multiplies float32 matrices on a CPU with MKL. oneDNN, which torch brings along too, was 2.5
times as fast on one AMD EPYC (`benchmarks/products.py`), in the same precision; on another, with
AVX2 but no AVX-512, MKL was the faster one, by 1.2 in a forward and 1.3 in a gradient pass (one
thread). So oneDNN is taken where there is AVX-512; that this is what sets the two apart is a guess,
since the first one's instruction set was not noted.
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
