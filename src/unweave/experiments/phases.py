"""What runs of nodes and of edges share: time and cost, finding nodes, what a run tells."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from unweave.batch import Batch
from unweave.circuits import Scores
from unweave.cost import metered
from unweave.distributed import summed
from unweave.experiments.run_folder import RunFolder
from unweave.experiments.specification import Experiment
from unweave.model.model import Model
from unweave.scores.problem import Reference, Runs
from unweave.scores.score import scores as registered_scores
from unweave.search.search import NOWHERE, Finding, searches

Say = Callable[[str], None]


def find_circuit(
    experiment: Experiment, folder: RunFolder | None, ledger: "Ledger", say: Say
) -> tuple[Scores, Finding]:
    """Scores every node and searches for the circuit, from where an interrupted run was left."""
    method, problem = experiment.specification.resolved, experiment.discovery
    scores = None if folder is None else folder.scores()
    if scores is None:
        say(f"Scoring {len(problem.nodes)} nodes: {method.score}")
        with ledger.phase("scores"):
            scores = registered_scores[method.score].run(problem, method.filled_score())
        if folder is not None:
            folder.save_scores(scores)
    say(f"Searching for the circuit: {method.search}")
    with ledger.phase("search"):
        search, options = searches[method.search], method.filled_search()
        if experiment.specification.level == "edge":
            options = search.nodes_before_edges(method.search_options)
        finding = search.run(problem, scores, options, folder or NOWHERE)
    return scores, finding


def about_model(experiment: Experiment, say: Say) -> None:
    """Says how well the model does the task.

    Raises:
        UnweaveError: When it cannot do it.
    """
    accuracy = experiment.accuracy
    correct = f"{accuracy.correct:.0%} of prompts correct"
    about = f"{experiment.model.name} on {experiment.task.name}"
    say(f"{about}: metric {accuracy.metric:+.2f}, {correct}")


def about_run(experiment: Experiment, reference: Reference) -> dict[str, Any]:
    """What `run.json` tells about every run.

    Args:
        reference: The two ends of faithfulness on the held-out prompts.
    """
    how, method = experiment.specification, experiment.specification.resolved
    metric = experiment.task.metric
    return {
        **{name: getattr(how, name) for name in ("task", "model", "seed", "ablation", "level")},
        "method": method.name,
        "score": method.score,
        "search": method.search,
        "options": {**method.filled_score(), **method.filled_search()},
        "accuracy": experiment.accuracy._asdict(),
        "metric": {
            "name": metric.name,
            "formula": metric.formula,
            "empty": float(reference.empty.mean()),
            "full": float(reference.full.mean()),
        },
        "published": bool(experiment.known()),
        "shape": _shape(experiment.model),
    }


def _shape(model: Model) -> dict[str, Any]:
    """What other tools ask about a model (cfg of EAP-IG)."""
    blocks = model.network.body.blocks
    first = blocks[0]
    return {
        "layers": len(blocks),
        "heads": first.attention.heads,
        "d_model": first.attention.out.shape[0],
        "parallel": first.parallel,
    }


@dataclass
class Ledger:
    """Time and cost by phase."""

    seconds: dict[str, float] = field(default_factory=dict)
    tokens: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        with metered() as meter:
            yield
        self.seconds[name] = round(time.monotonic() - began, 2)
        # What all processes of the run spent.
        self.tokens[name] = float(summed(torch.tensor(meter.tokens, dtype=torch.float64)))

    def forwards(self, problem: Runs) -> dict[str, float]:
        """The cost in forward passes of the problem's prompts."""
        one = forward_tokens(problem.model, problem.batch)
        return {name: round(tokens / one, 2) for name, tokens in self.tokens.items()}


def forward_tokens(model: Model, batch: Batch) -> float:
    """What one forward pass of some prompts costs, as `unweave.cost` counts."""
    network, inputs = model.network, batch.clean
    body = inputs if inputs.decoder is None else inputs.decoder
    tokens = float(len(network.body.blocks) * body.mask.numel())
    if network.encoder is not None:
        tokens += len(network.encoder.blocks) * inputs.mask.numel()
    return tokens


def wait_for_device(model: Model) -> None:
    """Returns once a GPU has finished its queued work, so that a clock includes it."""
    if model.network.device.type == "cuda":
        torch.cuda.synchronize(model.network.device)
