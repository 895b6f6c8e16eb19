"""Edges of synthetic models: those that are wired, less those that decide nothing on the prompts.

A wiring says who reads what whom wrote. Some of what is read cannot change the answer: its edge is
idle, and a search by runs rightly leaves it out. Each is listed with its reason.
"""

from collections.abc import Mapping

from unweave.behaviours.task import Task
from unweave.graph import edge_name

IDLE: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("tracr:reverse", "zero"): (
        # The head that counts the length attends everywhere alike: scores of 0 do the same.
        "input->a0.h0<q>",
        "input->a0.h0<k>",
        # Sends a query to BOS where it selects no key; here it always selects one.
        "input->a3.h0<q>",
    ),
}


def known_edges(task: Task, model: str, ablation: str) -> tuple[str, ...]:
    """The edges that carry a synthetic task in its model, by name."""
    wired = task.known[model].edges[ablation]
    idle = IDLE.get((model, ablation), ())
    return tuple(name for edge in wired if (name := edge_name(*edge)) not in idle)
