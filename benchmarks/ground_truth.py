"""How well each method finds circuits that are known by construction: rank AUC over all nodes.

    python benchmarks/ground_truth.py [--prompts 32]

Two hand-wired attention-only models and four programs compiled with tracr (skipped without it),
under each ablation. "sweep" is one pass of the decomposition with a rule set and no search.
"""

import argparse

from rich import box
from rich.console import Console
from rich.table import Table

from unweave.behaviours.file import find_task
from unweave.behaviours.task import synthetic_tasks
from unweave.decomposition.api import relevance
from unweave.errors import UnweaveError
from unweave.evaluation.faithfulness import ABLATIONS, faithfulness_of
from unweave.evaluation.roc import roc
from unweave.experiments.comparison_cells import Budget, Setting
from unweave.model.loading import load
from unweave.model.synthetic import tracr_programs
from unweave.progress import silent
from unweave.scores.problem import Problem, methods

RULES = ("removal", "paper")


def aucs(problem: Problem, known) -> list[str]:
    """One figure for each rule set and method, in the order of the table."""
    found = []
    nodes, ablation = list(problem.nodes), problem.ablation
    for rules in RULES:
        scores = relevance(
            problem.model, problem.batch, nodes, rules=rules, ablation=ablation, pairs=()
        )
        found.append(roc(scores, known).auc)
    for name in methods:
        try:
            found.append(roc(methods[name].run(problem), known).auc)
        except UnweaveError:
            found.append(None)
    return ["–" if auc is None else f"{auc:.2f}" for auc in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=32)
    prompts = parser.parse_args().prompts
    table = Table(
        title="Rank AUC over all nodes against the circuit that was built in",
        box=box.SIMPLE_HEAD,
        title_justify="left",
    )
    headings = ["model", "ablation", "nodes", "f", *(f"sweep,\n{name}" for name in RULES), *methods]
    for heading in headings:
        table.add_column(heading, no_wrap=True, justify="left" if heading == "model" else "right")
    with silent():
        for name in synthetic_tasks:
            if name.startswith("tracr:") and not tracr_programs.available():
                print(f'{name}: skipped, tracr is not installed (pip install "unweave[tracr]")')
                continue
            model, task = load(name), find_task(name)
            for ablation in ABLATIONS:
                setting = Setting(task, model, 0, Budget(ablation, prompts, prompts, "heads+mlps"))
                problem, known = setting.discover, setting.known["published"]
                faithful = float(faithfulness_of(problem, [known])[0])
                size = f"{len(known)} of {len(problem.nodes)}"
                table.add_row(name, ablation, size, f"{faithful:.2f}", *aucs(problem, known))
    table.caption = "f: faithfulness of the known circuit itself"
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
