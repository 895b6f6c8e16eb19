"""The whole search again, on other prompts: would it have found the same circuit?"""

import gc
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from statistics import mean
from typing import Any

from unweave.errors import UnweaveError
from unweave.experiments.phases import Ledger, find_circuit
from unweave.experiments.run_folder import Run
from unweave.experiments.specification import Experiment


def check_repeatable(run: Run, times: int) -> None:
    """Checks that a run's search can be repeated.

    Raises:
        UnweaveError: For a circuit of edges, whose search takes too long to be repeated.
    """
    if times and run.specification.level == "edge":
        raise UnweaveError("--repeat is for circuits of nodes: this run searched edges")


def repeated(experiment: Experiment, seed: int) -> dict[str, Any]:
    """Score and search on the prompts of another seed."""
    how = replace(experiment.specification, seed=seed)
    again = Experiment(how, experiment.model, experiment.task)
    _, finding = find_circuit(again, None, Ledger(), lambda line: None)
    del again
    gc.collect()  # an experiment and its problems refer to each other: gigabytes
    return {"seed": seed, "circuit": list(finding.circuit)}


def repeats_record(own: Sequence[str], searches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What repeated searches say about a circuit.

    `overlap` is the mean Jaccard overlap of the circuit with those found again, `between` that of
    any two of all; `kept` the share of searches that found each node again, and what else they
    found.
    """
    circuits = [set(one["circuit"]) for one in searches]
    nodes = dict.fromkeys((*own, *(name for one in searches for name in one["circuit"])))
    return {
        "searches": list(searches),
        "overlap": mean(_jaccard(set(own), one) for one in circuits),
        "between": mean(_jaccard(a, b) for a, b in combinations([set(own), *circuits], 2)),
        "kept": {name: mean(name in one for one in circuits) for name in nodes},
    }


def _jaccard(a: set[str], b: set[str]) -> float:
    return len(a & b) / len(a | b) if a or b else 1.0
