"""Everything that is measured of a circuit's nodes; roles and sentences are made from it alone."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unweave.roles import attention as attending
from unweave.roles.checks import resampled, without_each
from unweave.roles.feeds import Fed, completed, fed_by, needed_points
from unweave.roles.inputs import TakenOut
from unweave.roles.interventions import Swap, changed, follow, swap_tokens
from unweave.roles.measurements import Figure, Measurements
from unweave.roles.nodes import checked_nodes
from unweave.roles.positions import (
    along,
    by_label,
    by_own_token,
    by_token,
    main_position,
    matters,
    unit_of,
    varies,
)
from unweave.roles.runs import Cost, Runner, Seen, observe
from unweave.roles.shares import Ratio, share_of
from unweave.roles.writes import (
    Writes,
    candidates,
    copying,
    favoured,
    final_point,
    outputs_of,
    token_text,
)
from unweave.scores.problem import Problem
from unweave.sites import HEAD_KINDS, Point, Site

Index = Int[Tensor, " batch"]

_COPIES = 0.3  # |copying| from which the attended token is swapped
_LEAST_PROMPTS = 4


def measure(
    problem: Problem, nodes: Sequence[Site | str], budget: float = 20.0, seed: int = 0
) -> tuple[dict[str, Measurements], Cost]:
    """Measures nodes of a circuit, each against the others and the prompts' tokens.

    1. One plain run of all prompts: patterns, activations. One on random tokens that repeat.
    2. One backward pass: where each node matters.
    3. One sweep of the decomposition over some prompts: effects, and what feeds what.
    4. Interventions on these prompts: feeders taken out, heads ablated, attended tokens swapped.

    Args:
        nodes: Heads and MLPs, such as those of a circuit.
        budget: Forward passes of the problem's prompts that may be spent: steps 3 and 4 run on as
            many prompts as it allows, at least four.

    Raises:
        UnweaveError: For nodes that are neither heads nor MLPs, or an architecture whose nodes'
            outputs do not add up.
    """
    return _Measuring(problem, checked_nodes(problem.model, nodes), budget, seed).all()


class _Measuring:
    """The steps of `measure`, with what they share."""

    def __init__(self, problem: Problem, nodes: tuple[Site, ...], budget: float, seed: int) -> None:
        model, batch = problem.model, problem.batch
        tokens = batch.clean.mask.numel()
        self.cost = Cost(tokens, len(model.network.body.blocks))
        points = needed_points(model, nodes)
        self.corrupted = observe(model, batch.corrupted, (), points)
        self.cost.add("corrupted", batch.corrupted.mask.numel(), self.cost.layers)
        self.problem = completed(problem, points, self.corrupted.at)
        self.model, self.batch, self.nodes, self.budget = model, batch, nodes, budget
        self.heads = [node for node in nodes if node.point.kind in HEAD_KINDS]
        self.outputs = candidates(model, batch)
        whole = [head.at(None) for head in self.heads]
        self.clean = observe(model, batch.clean, whole, points | {final_point(model)})
        self.cost.add("patterns", tokens, self.cost.layers)
        self.writes = Writes(self.problem, self.clean)
        self.random = attending.random_tokens(model, seed)
        values = {Point("v", head.point.layer) for head in self.heads}
        self.random_seen = observe(model, self.random, whole, values)
        self.cost.add("random tokens", self.random.mask.numel(), self.cost.layers)
        matter = matters(self.problem, nodes, self.cost)
        self.matters = {node: x.weights for node, x in matter.items()}
        self.matter = matter
        self.at = {node: main_position(self.matters[node], batch.positions) for node in nodes}
        self.to = {head: self._to(head) for head in self.heads}

    def all(self) -> tuple[dict[str, Measurements], Cost]:
        copies = {head: self._copying(head) for head in self.heads}
        swaps = self._swaps([h for h, x in copies.items() if abs(x[0].value) >= _COPIES])
        some = slice(0, self._affordable())
        part = self.problem.select(some)
        froms = {node: index[some] for node, (_, index) in self.at.items()}
        tos = {head: index[some] for head, (_, index) in self.to.items()}
        totals = {point: x[some] for point, x in self.clean.at.items()}
        fed = fed_by(part, self.nodes, froms, tos, totals, self.cost)
        runner = Runner(self.model, part.batch, self.cost)
        scale = (runner.metric - part.metric([()])[0]).mean().abs()
        scale = scale.masked_fill(scale == 0, math.nan)
        self.cost.add("checks", part.batch.clean.mask.numel(), self.cost.layers)
        patterns = {head: self.clean.patterns[head.at(None)][some] for head in self.heads}
        attended = {head: self._attended(head)[some] for head in self.heads}
        others = {point: x[some] for point, x in self.corrupted.at.items()}
        taken = TakenOut(part, self.nodes, froms, totals)
        without = without_each(part, runner, self.nodes, fed, taken, patterns, attended)
        found = {}
        for node in self.nodes:
            own = self._effects(node, fed, scale, some) | self._of_any(node) | swaps.get(node, {})
            if node in self.to:
                own |= self._of_head(node, copies[node])
                own["errors"]["copying"] = copies[node][0].error
            found[str(node)] = Measurements(
                node=str(node),
                carried=self._carried(fed, node),
                feeds=fed.inputs_of(node),
                reads=fed.read_by(node),
                moved=without.whole.get(node, {}),
                fed=without.fed.get(node, {}),
                shifts=without.shifts.get(node, {}),
                prompts=some.stop,
                resampled=resampled(part, runner, node, fed.effects[str(node)].to(scale), others),
                **own,
            )
        return found, self.cost

    def _effects(
        self, node: Site, fed: Fed, scale: Float[Tensor, ""], some: slice
    ) -> dict[str, Any]:
        """Its effect, how much of it is direct, both of the metric's range on these prompts."""
        effects, direct = fed.effects[str(node)].to(scale), self.writes.direct(node)[some].to(scale)
        # The range as it is on these prompts: what varies is the effect.
        size, own_size = (Figure.of(x.abs() / scale) for x in (effects, direct))
        # Prompt by prompt: a head may raise the metric on some and lower it on others, and a ratio
        # of two means that are nearly 0 says nothing.
        share = share_of(direct * effects, effects**2)
        errors = {"effect_share": size.error, "direct_size": own_size.error}
        errors |= {"direct_share": share.error, "at_read": self._at_read(node).error}
        return {
            "effect": Figure.of(effects),
            "effect_share": size.mean,
            "direct": Figure.of(direct),
            "direct_size": own_size.mean,
            "direct_share": share.value,
            "direct_other": self.writes.direct_other(node),
            "errors": errors,
        }

    def _to(self, head: Site) -> tuple[str, Index]:
        """Where a head attends from where it matters, the first position left out."""
        rows = torch.arange(len(self.batch), device=self.batch.groups.device)
        weights = self.clean.patterns[head.at(None)][rows, self.at[head][1]].clone()
        if not any(bool((where == 0).any()) for where in self.batch.positions.values()):
            weights[:, 0] = 0.0
        return main_position(weights, self.batch.positions)

    def _copying(self, head: Site) -> tuple[Ratio, float]:
        weights = self._attended(head)
        values = self._values(self.clean, head)
        tokens = self.batch.clean.tokens
        assert tokens is not None
        assert self.random.tokens is not None
        here = copying(self.model, head, values, tokens, weights, self.outputs)
        said = outputs_of(self.model, self.random.tokens).unique()
        said = said[said >= 0]
        even = torch.ones_like(self.random.tokens, dtype=values.dtype)
        even[:, 0] = 0.0
        values = self._values(self.random_seen, head)
        return here, copying(self.model, head, values, self.random.tokens, even, said).value

    def _attended(self, head: Site) -> Float[Tensor, "batch key"]:
        """Weight on each key, summed over the positions that matter; none on the first."""
        matter = self.matters[head] / self.matters[head].sum().clamp(min=1e-30)
        weights = (self.clean.patterns[head.at(None)] * matter[:, :, None]).sum(1)
        weights[:, 0] = 0.0
        return weights * len(self.batch)

    def _values(self, seen: Seen, head: Site) -> Float[Tensor, "batch position d_head"]:
        attention = self.model.network.body.blocks[head.point.layer].attention
        assert head.unit is not None
        shared = head.unit // (attention.heads // attention.kv_heads)
        return seen.at[Point("v", head.point.layer)][:, :, shared]

    def _swaps(self, copying: Sequence[Site]) -> dict[Site, dict[str, Any]]:
        """All nodes once the answers, distractors and tokens that are copied are other ones."""
        batch = self.batch
        tos = [self.to[head][1] for head in copying]
        also = torch.cat((batch.readout.answers, batch.readout.distractors), 1)
        if self.model.network.head.labels:  # classes, not tokens
            also = torch.full_like(also, -1)
        swap = swap_tokens(batch.clean, tos, also)
        if swap is None:
            return {node: self._changes(node, None, None) for node in self.nodes}
        whole = [head.at(None) for head in self.heads]
        seen = observe(self.model, swap.inputs, whole, {node.point for node in self.nodes})
        self.cost.add("swap", self.cost.tokens, self.cost.layers)
        found: dict[Site, dict[str, Any]] = {}
        for node in self.nodes:
            found[node] = {**self._changes(node, swap, seen)}
            to = self.to.get(node, ("", None))[1]
            found[node]["followed"] = follow(
                self.model, node, self.clean, seen, swap, batch, self.at[node][1], to
            )
        return found

    def _changes(self, node: Site, swap: Swap | None, seen: Seen | None) -> dict[str, float]:
        """How far its output changes behind a swapped token; and, on swapped and on corrupted
        prompts, where another token stands before its own, which is the same."""
        total, clean = self.clean.at[node.point], self.batch.clean.tokens
        assert clean is not None
        other = []
        if swap is not None and seen is not None:
            other.append((swap.inputs.tokens, seen.at[node.point]))
        if self.batch.aligned:
            other.append((self.batch.corrupted.tokens, self.corrupted.at[node.point]))
        adds = total - self.problem.ablation.at(node.point, total)
        every = [unit_of(x, node) for x in (total, adds, *(x for _, x in other))]
        before, own, *after = along(torch.cat(every), self.matter[node].directions).chunk(
            len(every)
        )
        behind = [((tokens != clean).cumsum(-1) > 0) for tokens, _ in other]
        around = [
            there & (tokens == clean) for there, (tokens, _) in zip(behind, other, strict=True)
        ]
        reach = self.matter[node].reach
        middle = (before * reach[..., None]).sum((0, 1)) / reach.sum().clamp(min=1e-30)
        found = {"same_token": changed(before, before - middle, reach, after, around)}
        if swap is not None:
            matters = self.matters[node]
            found["swap_changes"] = changed(before, own, matters, after[:1], behind[:1])
        return found

    def _affordable(self) -> int:
        """How many prompts the node-by-node steps may run on, from the most that they can cost."""
        layers, count = self.cost.layers, len(self.batch)
        depth = [(layers - node.point.layer) / layers for node in self.nodes]
        each = 2 if self.problem.ablation.values else 3
        most = 3.0 + 2 * len(self.batch.positions) + sum(each * x for x in depth)
        left = max(0.0, self.budget - self.cost.passes)
        return min(count, max(_LEAST_PROMPTS, int(count * left / most)))

    def _carried(self, fed: Fed, node: Site) -> float:
        """The largest share of a head's value, where it attends, from a token at another position.

        NaN where it attends to no one label: what another position is depends on the prompt then.
        """
        label, to = self.to.get(node, ("", None))
        shares = fed.shares.get(f"{node}.v", {})
        if not label or not shares:
            return math.nan
        others = [name for name, at in self.batch.positions.items() if not bool((at == to).any())]
        return max((shares.get(f"embed@{name}", 0.0) for name in others), default=0.0)

    def _of_head(self, head: Site, copies: tuple[Ratio, float]) -> dict[str, Any]:
        whole = head.at(None)
        attention = attending.attention_of(
            self.model, self.clean.patterns[whole], self.matters[head], self.batch
        )
        scores = attending.random_scores(self.random_seen.patterns[whole], self.random)
        own = {"attention": attention, "to": self.to[head][0], "random": scores}
        return own | {"copying": copies[0].value, "copying_random": copies[1]}

    def _of_any(self, node: Site) -> dict[str, Any]:
        label, at = self.at[node]
        rows = torch.arange(len(at), device=at.device)
        output = along(unit_of(self.clean.at[node.point], node), self.matter[node].directions)
        tokens = self.batch.clean.tokens
        assert tokens is not None
        acted = by_own_token(self.matters[node], tokens)
        return {
            "kind": "head" if node.point.kind in HEAD_KINDS else "mlp",
            "matters": by_label(self.matters[node], self.batch.positions),
            "at": label,
            "tokens": {token_text(self.model, token): share for token, share in acted.items()},
            "varies": self._varies(node),
            "by_token": by_token(output, self.matter[node].reach, tokens),
            "favours": tuple(favoured(self.model, self.writes.of(node)[rows, at], self.outputs)),
        }

    def _at_read(self, node: Site) -> Ratio:
        weights = self.matters[node]
        rows = torch.arange(len(weights), device=weights.device)
        return share_of(weights[rows, self.batch.readout.read], weights.sum(-1))

    def _varies(self, node: Site) -> float:
        if not self.batch.aligned:
            return math.nan
        pair = [unit_of(x.at[node.point], node) for x in (self.clean, self.corrupted)]
        clean, corrupted = along(torch.cat(pair), self.matter[node].directions).chunk(2)
        return varies(clean, corrupted, self.matters[node], self.batch.groups)
