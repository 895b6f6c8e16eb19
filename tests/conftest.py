"""Fixtures that several folders of tests share."""

from typing import TYPE_CHECKING

import pytest
import type_checks
from hypothesis import Phase, settings

if TYPE_CHECKING:
    from unweave.model.model import Model

# Before anything of the package is imported.
type_checks.install("unweave")

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
