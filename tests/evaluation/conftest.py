"""The hand-wired models as problems: small, fast, and their circuits are known."""

import pytest

from unweave.behaviours.file import find_task
from unweave.experiments.comparison_cells import Budget, Setting
from unweave.model.loading import load
from unweave.scores.problem import Problem
from unweave.sites import Site, parse


@pytest.fixture(scope="session")
def setting() -> Setting:
    name = "wired-induction"
    return Setting(find_task(name), load(name), 0, Budget("mean", 16, 16))


@pytest.fixture(scope="session")
def problem(setting) -> Problem:
    return setting.held_out["mean"]


@pytest.fixture(scope="session")
def circuit() -> tuple[Site, ...]:
    return parse("a1.h2"), parse("a2.h0")
