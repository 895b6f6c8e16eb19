"""Fixtures that several folders of tests share."""

import pytest

from unweave.model.loading import load
from unweave.model.model import Model


@pytest.fixture(scope="session")
def smollm2() -> Model:
    """The default model, real weights, through the user's cache."""
    return load("smollm2-135m")
