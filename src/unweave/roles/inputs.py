"""Whether a node uses what is in its inputs: parts of its query, key and value are taken out.

A feeder's share of an input says what the input is made of, not that it matters: a softmax may stay
as it is when half of the query goes. So that share is taken out of this input, and of nothing else:
does the head's output follow?
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from unweave.model.parts import head_output
from unweave.roles.feeds import Totals, input_sites
from unweave.roles.runs import Seen
from unweave.roles.shares import NAMED, share_of
from unweave.scores.problem import Problem
from unweave.sites import HEAD_KINDS, Point, Site

Index = Int[Tensor, " batch"]

_DECIDES = 0.1  # of the output, from which an input is said to decide it
_USED = NAMED / 2  # of that, from which a feeder is said to be used: named are shares of twice this
_FAINT = 0.02  # of the output: a feeder that moves it by less is not said to be used


@dataclass(frozen=True)
class Moved:
    """A node without a part of one input.

    Args:
        output: How far its output falls towards the ablation: ⟨z − z′, z − μ⟩/‖z − μ‖².
        error: Standard error of it over prompts.
    """

    output: float
    error: float

    @property
    def clear(self) -> bool:
        """More than two standard errors from 0."""
        return abs(self.output) > 2 * self.error

    @property
    def decides(self) -> bool:
        """Of a whole input: whether the output depends on what it has of these prompts."""
        return self.output >= _DECIDES and self.clear


WHOLE = Moved(1.0, 0.0)  # all of an MLP's output, which has no inputs of its own to take out


def held(share: float, without: Moved | None, whole: Moved | None) -> bool | None:
    """Whether the claim that an input comes from a feeder held: the output follows it.

    Without the feeder in this input the output loses, clear of chance, at least a twentieth of what
    it loses without the whole input, and at least 2%; of a negative share, it gains that. Not in
    proportion to the share: a softmax may need little of a query. None where that was not run, or
    where the output does not depend on the input as a whole: what this is made of cannot be tested
    there.
    """
    if without is None or whole is None or not whole.decides:
        return None
    follows = math.copysign(without.output, share * without.output)
    return without.clear and follows >= max(_USED * whole.output, _FAINT)


class TakenOut:
    """What nodes lose when parts are taken out of their inputs, all else as it was.

    Args:
        problem: The prompts of the runs.
        at: Where each node matters.
        totals: Activations of the same prompts at the nodes' points and at their inputs.
    """

    def __init__(
        self, problem: Problem, nodes: Sequence[Site], at: Mapping[Site, Index], totals: Totals
    ) -> None:
        self.problem, self.at, self.totals = problem, at, totals
        model, inputs = problem.model, problem.batch.clean
        self.sites = {node: input_sites(model, node) for node in nodes}
        heads = [node for node in nodes if node.point.kind in HEAD_KINDS]
        self.output_of = {head: head_output(model, inputs, head) for head in heads}

    def points(self, nodes: Iterable[Site]) -> set[Point]:
        """Where a run has to be watched for `of`."""
        return {site.point for node in nodes for site in self.sites[node].values()}

    def of(self, node: Site, branch: str, seen: Seen) -> Moved:
        """With one input as it is in another run, such as one without a feeder."""
        site = self.sites[node][branch]
        return self._moved(node, branch, seen.at[site.point])

    def whole(self, node: Site, branch: str) -> Moved:
        """With one input at its ablation."""
        if not branch:
            return WHOLE
        point = self.sites[node][branch].point
        return self._moved(node, branch, self.problem.ablation.at(point, self.totals[point]))

    def _moved(self, node: Site, branch: str, value: Tensor) -> Moved:
        """The output with an activation in place of that at the point of an input."""
        rows = torch.arange(len(self.problem.batch), device=value.device)
        total, own = self.totals[node.point], (rows, self.at[node])
        mu = self.problem.ablation.at(node.point, total)
        if branch:
            own = (*own, node.unit)
            given = {b: self.totals[x.point][:, :, x.unit] for b, x in self.sites[node].items()}
            given[branch] = value[:, :, self.sites[node][branch].unit]
            new = self.output_of[node](given)[rows, self.at[node]]
        else:
            new = value[own]
        away = total[own] - mu[own]
        fall = share_of(((total[own] - new) * away).sum(-1), away.pow(2).sum(-1))
        return Moved(fall.value, fall.error)
