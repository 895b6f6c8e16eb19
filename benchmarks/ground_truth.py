"""How well each method finds circuits that are known by construction: rank AUC over all nodes.

    python benchmarks/ground_truth.py [--prompts 32] [--models wired-induction …]

Hand-wired attention-only models and four programs compiled with tracr (skipped without it), under
each ablation. The first table rates scores alone, the second what methods (score and search) find,
the third which edges `discover --level edge` finds.
"""

import argparse
from collections.abc import Collection, Sequence
from dataclasses import replace

from rich import box
from rich.console import Console
from rich.table import Table

from unweave.ablations.kind import ablations
from unweave.behaviours.synthetic.known_edges import known_edges
from unweave.behaviours.task import synthetic_tasks
from unweave.circuits import Scores
from unweave.errors import UnweaveError
from unweave.evaluation.roc import roc
from unweave.experiments.discover import discover
from unweave.experiments.methods import METHODS, Method
from unweave.experiments.specification import Experiment, Specification
from unweave.model.loading import load
from unweave.model.model import Model
from unweave.model.synthetic import tracr_programs
from unweave.options import Options
from unweave.progress import silent
from unweave.scores.problem import Problem
from unweave.scores.score import scores as registered
from unweave.search.search import searches
from unweave.sites import Site

SCORES: dict[str, tuple[str, Options]] = {
    "removal": ("decomposition", {"rules": "removal", "prompts": 1000}),
    "paper": ("decomposition", {"rules": "paper", "prompts": 1000}),
    **{name: (name, {}) for name in ("patching", "eap", "eap-ig", "relp", "random")},
}


def shown(auc: float | None) -> str:
    return "–" if auc is None else f"{auc:.2f}"


def of_score(problem: Problem, known: Collection[Site], name: str) -> str:
    score, options = SCORES[name]
    try:
        return shown(roc(registered[score].run(problem, options), known).auc)
    except UnweaveError:
        return "–"


def of_method(problem: Problem, known: Collection[Site], method: Method) -> str:
    """Rank AUC of the ranking; how many of the known nodes the circuit has, of its own size."""
    try:
        scores: Scores = registered[method.score].run(problem, method.filled_score())
        found = searches[method.search].run(problem, scores, method.filled_search())
    except UnweaveError:
        return "–"
    auc = roc(replace(scores, order=found.ranking), known).auc
    hits = len({site.at(None) for site in found.sites} & set(known))
    return f"{shown(auc)} {hits}/{len(found.circuit)}"


def of_edges(specification: Specification, model: Model) -> tuple[str, ...]:
    """Known and found edges, precision and recall, and faithfulness of the found edges."""
    task = Experiment.set_up(specification, model).task
    circuit = discover(model, task, replace(specification, level="edge"))
    known = {*known_edges(task, model.name, specification.ablation)}
    found = {edge.name for edge in circuit.edges}
    hits = len(known & found)
    figures = (hits / len(found), hits / len(known), circuit.faithfulness)
    total = f"{len(found)}/{circuit.edges_total}"
    return str(len(known)), total, *(f"{figure:.2f}" for figure in figures)


def table(title: str, columns: Sequence[str]) -> Table:
    made = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for heading in ("model", "ablation", "nodes", "f", *columns):
        made.add_column(heading, no_wrap=True, justify="left" if heading == "model" else "right")
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--models", nargs="+", default=list(synthetic_tasks))
    options = parser.parse_args()
    by_score = table("Rank AUC of scores against the circuit that was built in", list(SCORES))
    by_method = table("Rank AUC of methods, and known nodes in the circuit/its size", list(METHODS))
    by_edge = Table(title="Edges of cdt", box=box.SIMPLE_HEAD, title_justify="left")
    for heading in ("model", "ablation", "known", "found", "precision", "recall", "f"):
        by_edge.add_column(heading, no_wrap=True)
    with silent():
        for name in options.models:
            if name.startswith("tracr:") and not tracr_programs.available():
                print(f'{name}: skipped, tracr is not installed (pip install "unweave[tracr]")')
                continue
            model = load(name)
            for ablation in ablations:
                specification = Specification(
                    name, name, ablation=ablation, prompts=options.prompts, mlps=True
                )
                experiment = Experiment.set_up(specification, model)
                problem, known = experiment.discovery, experiment.known()["published"]
                faithful = float(problem.faithfulness([known])[0])
                row = (name, ablation, f"{len(known)}/{len(problem.nodes)}", f"{faithful:.2f}")
                by_score.add_row(*row, *(of_score(problem, known, one) for one in SCORES))
                methods = METHODS.values()
                by_method.add_row(*row, *(of_method(problem, known, one) for one in methods))
                by_edge.add_row(name, ablation, *of_edges(specification, model))
    by_method.caption = "f: faithfulness of the known circuit itself"
    console = Console(width=150)
    console.print(by_score)
    console.print(by_method)
    console.print(by_edge)


if __name__ == "__main__":
    main()
