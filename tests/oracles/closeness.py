"""Bounds for figures that other machines round differently."""

import torch
from torch import Tensor

# Of the largest value that is compared. CPUs differ in the order of their sums; exactness is
# tested in float64.
RELATIVE = {torch.float32: 1e-4, torch.float64: 1e-10}


def assert_close(ours: Tensor, theirs: Tensor, relative: float | None = None) -> None:
    """Same shape, and no value off by more than a share of the largest of `theirs`."""
    assert ours.shape == theirs.shape
    worst, size = (ours - theirs).abs().max(), theirs.abs().max()
    bound = RELATIVE[theirs.dtype] if relative is None else relative
    assert worst <= bound * size, f"off by {worst:.2e} of {size:.2e}"
