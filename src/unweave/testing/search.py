"""`check_search`: the contract of a file in `search`."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from unweave.scores.problem import Problem
from unweave.scores.score import scores
from unweave.search.search import Finding, Search, searches
from unweave.testing.problem import check_error, tiny_problem


class Recorder:
    """A checkpoint that keeps every state as JSON, as a run folder does."""

    def __init__(self, begin: str | None = None) -> None:
        self.begin, self.states = begin, list[str]()

    def load(self) -> dict[str, Any] | None:
        return None if self.begin is None else json.loads(self.begin)

    def save(self, state: Mapping[str, Any]) -> None:
        self.states.append(json.dumps(state))


def check_search(search: "str | Search") -> None:
    """Checks a search on tiny random models of two families, behind every score.

    The circuit is made of the problem's nodes, none twice; every node is ranked once; the same
    call finds the same again, also from any state that was saved on the way; nodes at positions
    work; unknown options and values outside their meaning are errors.

    Raises:
        AssertionError: Naming the first thing that is wrong.
    """
    search = searches[search] if isinstance(search, str) else search
    for family in ("gpt2", "llama"):
        problem = tiny_problem(family)
        for name in scores:
            _check_finding(problem, search.run(problem, scores[name].run(problem)), name)
        _check_resume(search, problem)
        heads = problem.model.heads()
        nodes = tuple(head.at(where) for head in heads for where in ("start", "end", "other"))
        at = replace(problem, nodes=nodes)
        _check_finding(at, search.run(at, scores["eap"].run(at)), "eap at positions")
    _check_options(search, tiny_problem("gpt2"))


def _check_finding(problem: Problem, finding: Finding, score: str) -> None:
    names = set(map(str, problem.nodes))
    circuit, ranking = finding.circuit, finding.ranking
    assert circuit, f"{score}: the circuit is empty"
    assert len(set(circuit)) == len(circuit), f"{score}: a node is twice in the circuit"
    assert set(circuit) <= names, f"{score}: the circuit holds what is not a node of the problem"
    assert len(ranking) == len(names), f"{score}: {len(ranking)} of {len(names)} nodes are ranked"
    assert set(ranking) == names, f"{score}: a node is ranked twice"
    assert finding.rounds, f"{score}: no round is recorded"
    last = finding.rounds[-1]
    assert math.isfinite(last.faithfulness), f"{score}: faithfulness is not finite"


def _check_resume(search: Search, problem: Problem) -> None:
    rated, whole = scores["eap"].run(problem), Recorder()
    finding = search.run(problem, rated, kept=whole)
    for state in whole.states:
        again = search.run(problem, rated, kept=Recorder(state))
        assert again == finding, "a search that goes on from a saved state finds something else"
    torch.manual_seed(1)  # a search that draws has to bring its own generator
    assert search.run(problem, rated) == finding, "the same call finds something else"


def _check_options(search: Search, problem: Problem) -> None:
    rated = scores["eap"].run(problem)
    check_error(lambda: search.run(problem, rated, {"no_such_option": 1}), ["no_such_option"])
    for name, option in search.options.items():
        check_error(lambda name=name: search.run(problem, rated, {name: object()}), [name])
        if option.low > -math.inf:
            beyond = type(option.default)(option.low - 1)
            check_error(lambda n=name, x=beyond: search.run(problem, rated, {n: x}), [name])
