"""EAP-IG: gradients averaged between corrupted and clean inputs (Hanna et al., 2024), at nodes."""

from collections.abc import Mapping
from typing import Any

import torch

from unweave.baselines import activations
from unweave.circuits import Scores
from unweave.errors import UnweaveError
from unweave.methods.eap import differences, parts
from unweave.methods.gradients import EMBED, metric_gradients, node_products
from unweave.methods.method import Method, Problem, methods, node_scores


def score(problem: Problem, options: Mapping[str, Any]) -> Scores:
    """⟨mean over α of ∂m/∂z at embeddings e′ + α(e − e′), z − μ⟩, α = 1/m … 1."""
    if not problem.batch.aligned:
        raise UnweaveError("eap-ig needs clean and corrupted prompts of one length: use eap")
    model, steps, columns = problem.model, options["steps"], []
    for part in parts(len(problem.batch), model.network.device):
        batch, baseline = problem.batch.select(part), problem.baseline.select(part)
        clean = activations(model, batch.clean, [EMBED])[EMBED]
        corrupted = activations(model, batch.corrupted, [EMBED])[EMBED]
        total = None
        values = {}
        for step in range(1, steps + 1):
            mixed = corrupted + (clean - corrupted) * (step / steps)
            gradients, values, _ = metric_gradients(
                model, batch, problem.points, embedding=mixed
            )
            # The last step is the clean run itself: its values are the nodes' own.
            if total is None:
                total = gradients
            else:
                total = {point: total[point] + g for point, g in gradients.items()}
        assert total is not None
        mean = {point: g / steps for point, g in total.items()}
        columns.append(node_products(problem, mean, differences(values, baseline, batch), batch))
    return node_scores(problem, torch.cat(columns, 1), method="eap-ig", steps=str(steps))


methods.register("eap-ig")(
    Method(
        "eap-ig",
        "gradients averaged along corrupted → clean inputs",
        score,
        options={"steps": 5},
    )
)
