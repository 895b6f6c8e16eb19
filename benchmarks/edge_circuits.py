"""Edge circuits, ours beside EAP-IG's: how many edges each needs, and edge CMD by MIB's grid.

    python benchmarks/edge_circuits.py --out edge_circuits.json --device cuda
    python benchmarks/edge_circuits.py --model wired-induction --tasks wired-induction --seeds 0

Ours: nodes first, then edges among them (`eliminate`, scores by decomposition). EAP-IG: the first k
edges by |score|, the smallest k with |1 − f| within the tolerance on the search prompts (`top`).
Both are measured on the same held-out prompts. CMD is MIB's: circuits of .001 .002 .005 .01 .02 .05
.1 .2 .5 1 of all edges in each ranking's order, ∫ |1 − f| over the share by trapezoids.

Every result is written to --out as soon as it is there; finished ones are not run again, and with
--states a search that was stopped goes on.
"""

import argparse
import gc
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unweave.cost import metered
from unweave.evaluation.mib import area, kept_counts
from unweave.experiments.edge_experiment import EdgeExperiment
from unweave.experiments.phases import forward_tokens
from unweave.experiments.specification import Experiment, Specification
from unweave.graph import edge_ends
from unweave.model.loading import load
from unweave.model.model import Model
from unweave.progress import silent
from unweave.scores.edge_problem import EdgeProblem
from unweave.scores.score import scores
from unweave.search.search import Finding, searches


def mib_cmd(problem: EdgeProblem, ranking: tuple[str, ...]) -> tuple[float, list[float]]:
    """∫ |1 − f| over the kept share, and f at each share."""
    sizes = kept_counts(len(ranking))
    values = [float(problem.faithfulness([ranking[:size]])[0]) for size in sizes]
    return area([abs(1 - value) for value in values]), values


class Kept:
    """The state of a search, in a file: a benchmark that was stopped goes on."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def load(self) -> dict[str, Any] | None:
        if self.path is None or not self.path.exists():
            return None
        return json.loads(self.path.read_text())

    def save(self, state: Mapping[str, Any]) -> None:
        if self.path is not None:
            fresh = self.path.with_suffix(".new")
            fresh.write_text(json.dumps(dict(state)))
            fresh.replace(self.path)


def ours(
    edges: EdgeExperiment, price: float, states: Path | None
) -> tuple[Finding, dict[str, Any]]:
    experiment = edges.experiment
    how, method = experiment.specification, experiment.specification.resolved
    problem, search = experiment.discovery, searches[method.search]
    options = {**method.filled_search(), "edge_price": price}
    rated = scores[method.score].run(problem, method.filled_score())

    def kept(level: str) -> Kept:
        return Kept(states and states / f"{how.task}-{how.seed}-{level}.json")

    before = search.nodes_before_edges(method.search_options)
    nodes = search.run(problem, rated, before, kept("nodes"))
    rated = scores[method.score].run_edges(edges.scored, method.filled_score())
    among = edges.joined(nodes.circuit)
    found = search.run_edges(edges.discovery, rated, among, options, kept("edges"))
    joined = len(found.rounds[0].selected)
    return found, {"nodes_first": len(nodes.circuit), "edges_first": joined}


def eap_ig(edges: EdgeExperiment, steps: int, tolerance: float) -> tuple[Finding, dict[str, Any]]:
    rated = scores["eap-ig"].run_edges(edges.scored, {"steps": steps})
    options = {"tolerance": tolerance}
    return searches["top"].run_edges(edges.discovery, rated, (), options), {"steps": steps}


def measured(model: Model, task: str, seed: int, method: str, given: argparse.Namespace) -> dict:
    how = Specification(
        task,
        given.model,
        score=given.score,
        options={"tolerance": given.tolerance},
        ablation=given.ablation,
        seed=seed,
        prompts=given.prompts,
        held_out=given.held_out,
        level="edge",
    )
    edges = EdgeExperiment(Experiment.set_up(how, model))
    _ = edges.discovery.reference
    began = time.perf_counter()
    with metered() as meter:
        if method == "ours":
            found, more = ours(edges, given.price, given.states)
        else:
            found, more = eap_ig(edges, int(method.rpartition("-")[2]), given.tolerance)
    seconds = time.perf_counter() - began
    prompts = len(edges.discovery.batch)
    forwards = round(meter.tokens / forward_tokens(model, edges.discovery.batch), 1)
    edges = EdgeExperiment(Experiment.set_up(how, model))
    gc.collect()  # what was searched on, gigabytes, is not needed beside what is measured on
    held_out = edges.held_out
    figure = held_out.reference.estimate(held_out.metric([found.circuit])[0])
    cmd, values = mib_cmd(held_out, found.ranking)
    ends = {end for edge in found.circuit for end in edge_ends(edge)[:2]}
    return {
        "task": task,
        "seed": seed,
        "method": method,
        "edges": len(found.circuit),
        "of": len(held_out.nodes),
        "nodes": len(ends - {"input", "logits"}),
        "f": figure.value,
        "half": figure.half,
        "f_search": found.rounds[-1].faithfulness,
        "cmd": cmd,
        "f_at_shares": values,
        "seconds": round(seconds, 1),
        "forwards": forwards,
        "prompts": prompts,
        "held_out": len(held_out.batch),
        **more,
        "circuit": list(found.circuit) if len(found.circuit) <= 5000 else [],
    }


def shown(found: dict[str, Any]) -> str:
    return (
        f"{found['task']:18s} seed {found['seed']} {found['method']:10s} "
        f"{found['edges']:6d} of {found['of']} edges, {found['nodes']:3d} nodes, "
        f"f {found['f']:.3f} ± {found['half']:.3f} held out ({found['f_search']:.3f} found), "
        f"CMD {found['cmd']:.4f}, {found['seconds']:.0f} s, {found['forwards']:.0f} forward passes"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tasks", nargs="+", default=["ioi", "greater-than", "docstring"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[11, 12])
    parser.add_argument("--methods", nargs="+", default=["ours", "eap-ig-5", "eap-ig-10"])
    parser.add_argument("--ablation", default="counterfactual")
    parser.add_argument("--score", help="of ours; the level's default unless given")
    parser.add_argument("--price", type=float, default=0.001)
    parser.add_argument("--tolerance", type=float, default=0.05)
    parser.add_argument("--prompts", type=int)
    parser.add_argument("--held-out", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--states", type=Path, help="a folder for the states of searches")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found: list[dict[str, Any]] = []
    if given.out is not None and given.out.exists():
        found = json.loads(given.out.read_text())
    if given.states is not None:
        given.states.mkdir(parents=True, exist_ok=True)
    model = load(given.model, device=given.device)
    with silent():
        for task in given.tasks:
            for seed in given.seeds:
                for method in given.methods:
                    key = {"task": task, "seed": seed, "method": method}
                    done = [one for one in found if key.items() <= one.items()]
                    made = done[0] if done else measured(model, task, seed, method, given)
                    gc.collect()  # an experiment and its problems refer to each other: gigabytes
                    print(shown(made), flush=True)
                    if not done:
                        found.append(made)
                    if given.out is not None:
                        given.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
