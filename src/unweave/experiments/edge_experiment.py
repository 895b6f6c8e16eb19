"""An experiment whose circuits are made of edges: its prompts with ablations at every node."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from unweave.ablations.kind import Apply, prepared
from unweave.batch import Batch
from unweave.behaviours.task import Part
from unweave.experiments.specification import Experiment, under_ablation
from unweave.graph import edge_name, graph_of, graph_points
from unweave.scores.edge_problem import EdgeProblem
from unweave.scores.problem import Problem

_EVIDENCE_PROMPTS = 16


@dataclass(frozen=True, eq=False)
class EdgeExperiment:
    """The prompts of an experiment as problems of edges; made when asked for."""

    experiment: Experiment

    @cached_property
    def discovery(self) -> EdgeProblem:
        """The prompts to search on."""
        nodes = self.experiment.discovery
        problem = self._problem(nodes.batch, self.experiment.specification.ablation)
        return problem if nodes.draw is None else replace(problem, draw=self.problem)

    @cached_property
    def held_out(self) -> EdgeProblem:
        """Prompts that nothing is chosen on."""
        how = self.experiment.specification
        return self._problem(self.experiment.held_out.batch, how.ablation)

    @cached_property
    def evidence(self) -> EdgeProblem:
        """Some check prompts, on which no circuit is polished: every edge and node of the
        circuit leaves once on each."""
        return self.problem("check", min(len(self.discovery.batch), _EVIDENCE_PROMPTS))

    @property
    def scored(self) -> Problem:
        """What scores of edges are given: the prompts to search on."""
        found = self.discovery
        return Problem(found.model, found.batch, self.experiment.nodes, found.ablation)

    def joined(self, circuit: Sequence[str]) -> tuple[str, ...]:
        """Nodes that edges may lead between: MLPs that are never ablated are always among them."""
        how, model = self.experiment.specification, self.experiment.model
        mlps = [] if how.mlps else list(map(str, model.mlps()))
        return tuple(dict.fromkeys((*circuit, *mlps)))

    def problem(self, part: Part, n: int | None = None) -> EdgeProblem:
        """Prompts of a part."""
        experiment, how = self.experiment, self.experiment.specification
        return self._problem(experiment.task.batch(experiment.model, n, seed=how.seed, part=part))

    def under(self, problem: EdgeProblem, ablation: str) -> EdgeProblem | None:
        """The same prompts under another ablation; None where it cannot be built for them."""
        return under_ablation(problem, ablation, self._problem)

    def known(self) -> dict[str, tuple[str, ...]]:
        """Edges of the published circuit of this model, where they are known."""
        experiment = self.experiment
        circuit = experiment.task.known_circuit(experiment.model.name)
        edges = {} if circuit is None else circuit.edges
        found = edges.get(experiment.specification.ablation)
        return {} if not found else {"published": tuple(edge_name(*edge) for edge in found)}

    @cached_property
    def _ablations(self) -> dict[str, Apply]:
        return {}

    def _problem(self, batch: Batch, ablation: str | None = None) -> EdgeProblem:
        experiment = self.experiment
        how, model = experiment.specification, experiment.model
        name = ablation or how.ablation
        graph_of(model, post_norms=False)  # an error that says why a model has no edges
        if name not in self._ablations:
            points = graph_points(model)
            self._ablations[name] = prepared(experiment.task, model, name, points, how.seed)
        return EdgeProblem.of(model, batch, self._ablations[name](batch))
