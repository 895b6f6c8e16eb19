"""In which precision relevant parts are multiplied; totals are never in less than float32."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from unweave.errors import UnweaveError
from unweave.model.model import Model

Precision = Literal["float32", "tf32", "float64"]

# Share of the largest value by which TF32 may change a relevant part before it is switched off.
TF32_TOLERANCE = 0.02
_HALF = (torch.float16, torch.bfloat16)
_WIDE = {"float32": torch.float32, "tf32": torch.float32, "float64": torch.float64}


def widened(model: Model, precision: Precision | None) -> Model:
    """The model in the dtype of its totals: half-precision weights become float32."""
    dtype = model.network.dtype
    wanted = torch.float32 if dtype in _HALF else dtype
    wanted = wanted if precision is None else _WIDE[precision]
    return model if wanted == dtype else model.to(wanted)


def uses_tf32(model: Model, precision: Precision | None) -> bool:
    """Whether products of relevant parts use TF32: by default wherever the GPU has it.

    Raises:
        UnweaveError: When it is asked for on hardware without it.
    """
    device = model.network.device
    able = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    if precision == "tf32" and not able:
        raise UnweaveError(
            f"precision 'tf32' needs an NVIDIA GPU of the Ampere generation or later, found "
            f"{device.type}: leave precision out"
        )
    return able and precision in (None, "tf32") and model.network.dtype == torch.float32


@contextmanager
def products(tf32: bool) -> Iterator[None]:
    """Matrix products on a GPU within this block use TF32, or full float32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def precision_note(change: float | None, sources: int) -> dict[str, str]:
    """What a result says about TF32: by how much it changed the sources that were rechecked."""
    if change is None:
        return {}
    return {"precision": f"tf32, within {change:.1e} of float32 on {sources} sources"}
