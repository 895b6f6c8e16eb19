"""Random models whose figures can be worked out another way."""

import pytest
from oracles import hooked_roles
from oracles.explained import tiny_problem

from unweave.roles import Measurements, measure
from unweave.scores.problem import Problem


@pytest.fixture(scope="session", params=[("gpt2", "four layers"), ("llama", None)])
def tiny(request) -> Problem:
    return tiny_problem(*request.param)


@pytest.fixture(scope="session")
def oracle() -> hooked_roles.Oracle:
    """transformers' own GPT-2, with hooks."""
    return hooked_roles.oracle()


@pytest.fixture(scope="session")
def found(oracle) -> dict[str, Measurements]:
    """Every node of that model, as unweave measures it."""
    return measure(oracle.problem, oracle.problem.nodes, budget=1000.0)[0]
