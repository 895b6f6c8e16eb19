"""Fixtures that several folders of tests share."""

import os
from typing import TYPE_CHECKING

import pytest
import torch
import type_checks
from hypothesis import Phase, settings

if TYPE_CHECKING:
    from unweave.model.model import Model

# Before anything of the package is imported.
type_checks.install("unweave")

# Without a GPU, Triton's interpreter runs the kernels. Triton reads this when it is first imported,
# which other libraries may do long before the tests of the kernels.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# The same examples in every run, few enough for a model in each, and no folder left behind.
# No shrinking: a draw here is small, and a failing one would be run for minutes.
settings.register_profile(
    "unweave",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=10,
    phases=[Phase.explicit, Phase.generate],
)
settings.load_profile("unweave")


@pytest.fixture(scope="session")
def smollm2() -> "Model":
    """The default model, real weights, through the user's cache."""
    from unweave.model.loading import load

    return load("smollm2-135m")
