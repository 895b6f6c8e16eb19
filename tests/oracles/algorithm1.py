"""Algorithm 1 of the paper, slowly: one circuit a run, one node at a time."""

from dataclasses import dataclass

import numpy
import torch
from oracles.patched import patched

from unweave.circuits import Scores
from unweave.scores.problem import Problem
from unweave.sites import Point, parse


@dataclass
class Twin:
    """The algorithm as the paper prints it, on plain runs of one circuit each."""

    problem: Problem
    scores: Scores
    percentile: float

    def metric(self, circuit: list[str]) -> float:
        problem, batch = self.problem, self.problem.batch
        gone = [node for node in problem.nodes if str(node) not in circuit]
        out = patched(problem.model.network, batch.clean, gone, problem.ablation.values)
        rows = torch.arange(len(batch))
        logits = out[Point("logits")][rows, batch.readout.read]
        return float(batch.readout.measure(logits).mean())

    def relevance(self, targets: list[str]) -> dict[str, float]:
        values = self.scores.values
        if targets != ["logits"]:
            columns = [self.scores.targets.index(target) for target in targets]
            values = sum(self.scores.pairs["ratio"][:, i] for i in columns)
        return dict(zip(self.scores.sources, torch.as_tensor(values).tolist(), strict=True))

    def chosen(self, targets: list[str], joined: list[str]) -> list[str]:
        deepest = max(_place(target) for target in targets)
        values = {n: abs(v) for n, v in self.relevance(targets).items() if _place(n) < deepest}
        values = {n: v for n, v in values.items() if n not in joined}
        if not values:
            return []
        mark = numpy.percentile(list(values.values()), self.percentile)
        return sorted((n for n in values if values[n] >= mark), key=lambda n: -values[n])

    def pruned(self, circuit: list[str]) -> list[str]:
        changed = True
        while changed:
            changed = False
            for node in list(circuit):
                without = [n for n in circuit if n != node]
                if without and self.metric(without) > self.metric(circuit):
                    circuit, changed = without, True
        return circuit

    def run(self, rounds: int) -> list[tuple[list[str], list[str]]]:
        full, empty = self.metric(list(self.scores.sources)), self.metric([])
        targets, circuit, joined, history, before = ["logits"], [], [], [], None
        while len(history) < rounds:
            targets = self.chosen(targets, joined)
            if not targets:
                break
            joined += targets
            circuit = self.pruned([*circuit, *targets])
            history.append((targets, circuit))
            now = (self.metric(circuit) - empty) / (full - empty)
            worse = before is not None and (now - before) * (1 if full > empty else -1) <= 0
            if abs(1 - now) < 0.05 or worse:
                break
            before = now
        return history


def _place(name: str) -> tuple[int, int]:
    point = parse(name).point
    return (99, 0) if point.kind == "logits" else (point.layer, int(point.kind == "mlp"))
