"""Random models whose figures can be worked out another way."""

import pytest
from oracles.explained import tiny_problem

from unweave.scores.problem import Problem


@pytest.fixture(scope="session", params=[("gpt2", "four layers"), ("llama", None)])
def tiny(request) -> Problem:
    return tiny_problem(*request.param)
