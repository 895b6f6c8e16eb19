"""The hand-wired models as problems: small, fast, and their circuits are known."""

import pytest

from unweave.experiments.specification import Experiment, Specification
from unweave.model.loading import load
from unweave.scores.problem import Problem
from unweave.sites import Site, parse


@pytest.fixture(scope="session")
def experiment() -> Experiment:
    name = "wired-induction"
    return Experiment.set_up(Specification(name, name, prompts=16, held_out=16), load(name))


@pytest.fixture(scope="session")
def problem(experiment) -> Problem:
    return experiment.held_out


@pytest.fixture(scope="session")
def circuit() -> tuple[Site, ...]:
    return parse("a1.h2"), parse("a2.h0")
