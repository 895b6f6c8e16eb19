"""Prompts of a run as plain data, for `run.json`."""

from collections.abc import Mapping
from typing import Any

from jaxtyping import Float
from torch import Tensor

from unweave.scores.problem import Runs


def prompt_records(
    problem: Runs,
    circuit: Float[Tensor, " batch"] | None = None,
    details: Mapping[int, Mapping[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """Texts, answers, tokens and named positions of every prompt.

    Args:
        circuit: A circuit's metric on each prompt, to set beside the model's.
        details: By number of a prompt, what else is known about it (`prompt_details`).
    """
    batch, model = problem.batch, problem.model
    readout, tokens = batch.readout, batch.clean.tokens
    assert tokens is not None
    labels = model.network.head.labels

    def words(ids: list[int]) -> list[str]:
        return [labels[i] if labels else model.decode(i) for i in ids if i >= 0]

    rows = []
    for i in range(len(batch)):
        ids = tokens[i][batch.clean.mask[i]].tolist()
        rows.append(
            {
                "clean": batch.texts[i],
                "corrupted": batch.corrupted_texts[i],
                "answers": words(readout.answers[i].tolist()),
                "distractors": words(readout.distractors[i].tolist()),
                "tokens": [model.decode(token) for token in ids],
                "positions": {name: int(where[i]) for name, where in batch.positions.items()},
            }
        )
        if circuit is not None:
            rows[-1]["metric"] = {
                "model": float(problem.reference.full[i]),
                "circuit": float(circuit[i]),
                "ablated": float(problem.reference.empty[i]),
            }
        rows[-1] |= (details or {}).get(i, {})
    return rows
