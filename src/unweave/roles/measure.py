"""Everything that is measured of a circuit's nodes; roles and sentences are made from it alone."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unweave.ablation import Ablation, position_mask
from unweave.errors import UnweaveError
from unweave.graph import graph_of
from unweave.model.model import Model
from unweave.roles import attention as attending
from unweave.roles.feeds import Fed, completed, fed_by, needed_points
from unweave.roles.interventions import (
    Followed,
    Moved,
    attention_shift,
    follow,
    swap_tokens,
    without_feeders,
)
from unweave.roles.measurements import MOST_NAMED, NAMED, Figure, Measurements, Shift
from unweave.roles.positions import (
    along,
    by_label,
    by_token,
    main_position,
    matters,
    unit_of,
    varies,
)
from unweave.roles.runs import Cost, Runner, Seen, ablated, observe
from unweave.roles.shares import Ratio, share_of
from unweave.roles.writes import (
    candidates,
    copying,
    direct_effect,
    favoured,
    final_point,
    node_write,
    outputs_of,
)
from unweave.scores.problem import Problem
from unweave.sites import HEAD_KINDS, Point, Site, parse

Index = Int[Tensor, " batch"]

KINDS = ("z", "mlp")  # what roles are defined for: heads and MLPs
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


def checked_nodes(model: Model, nodes: Sequence[Site | str]) -> tuple[Site, ...]:
    """Nodes that roles are defined for, in the order of the forward pass.

    Raises:
        UnweaveError: As `measure` does.
    """
    graph_of(model, post_norms=False)  # raises where writes do not add up
    sites = tuple(parse(node) for node in nodes)
    if not sites:
        raise UnweaveError("no node to explain: give the sites of a circuit, such as a9.h6")
    for site in sites:
        model.check_site(site)
        if site.point.kind not in KINDS:
            raise UnweaveError(
                f"{site} is neither a head nor an MLP: name some, such as a9.h6 or m5"
            )
    return tuple(sorted(sites, key=lambda site: (site.point.depth, site.unit or 0)))


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
        part, count = self.problem.select(some), some.stop
        froms = {node: index[some] for node, (_, index) in self.at.items()}
        tos = {head: index[some] for head, (_, index) in self.to.items()}
        totals = {point: x[some] for point, x in self.clean.at.items()}
        fed = fed_by(part, self.nodes, froms, tos, totals, self.cost)
        runner = Runner(self.model, part.batch, self.cost)
        scale = (runner.metric - part.metric([()])[0]).mean().abs()
        scale = scale.masked_fill(scale == 0, math.nan)
        self.cost.add("checks", part.batch.clean.mask.numel(), self.cost.layers)
        found = {}
        for node in self.nodes:
            moved, lost = self._without_feeders(part, runner, node, fed, froms, totals)
            effects = fed.effects[str(node)].to(scale)
            direct = self._direct(node)[some].to(scale)
            # Of the range on these prompts, as it is: what varies is the effect.
            size, own_size = (Figure.of(x.abs() / scale) for x in (effects, direct))
            # Prompt by prompt: a head may raise the metric on some and lower it on others, and a
            # ratio of two means that are nearly 0 says nothing.
            share = share_of(direct * effects, effects**2)
            own: dict[str, Any] = {}
            errors = {"effect_share": size.error, "direct_size": own_size.error}
            errors |= {"direct_share": share.error, "at_read": self._at_read(node).error}
            if node in self.to:
                own = self._of_head(node, copies[node], swaps.get(node))
                own["shifts"] = self._shifts(part, runner, node, fed, froms)
                errors["copying"] = copies[node][0].error
            found[str(node)] = Measurements(
                node=str(node),
                effect=Figure.of(effects),
                effect_share=size.mean,
                direct=Figure.of(direct),
                direct_size=own_size.mean,
                direct_share=share.value,
                carried=self._carried(fed, node),
                errors=errors,
                feeds=_feeds(fed, str(node)),
                reads=_reads(fed, str(node)),
                moved=moved,
                fed_effect=lost,
                prompts=count,
                resampled=self._resampled(runner, node, effects),
                **self._of_any(node),
                **own,
            )
        return found, self.cost

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

    def _swaps(self, copying: Sequence[Site]) -> dict[Site, Followed]:
        """All heads once the answers, distractors and tokens that are copied are other ones."""
        batch = self.batch
        tos = [self.to[head][1] for head in copying]
        also = torch.cat((batch.readout.answers, batch.readout.distractors), 1)
        if self.model.network.head.labels:  # classes, not tokens
            also = torch.full_like(also, -1)
        swap = swap_tokens(batch.clean, tos, also)
        if swap is None:
            return {}
        whole = [head.at(None) for head in self.heads]
        seen = observe(self.model, swap.inputs, whole, {head.point for head in self.heads})
        self.cost.add("swap", self.cost.tokens, self.cost.layers)
        return {
            head: follow(
                self.model, head, self.clean, seen, swap, batch, self.at[head][1], self.to[head][1]
            )
            for head in self.heads
        }

    def _affordable(self) -> int:
        """How many prompts the node-by-node steps may run on, from the most that they can cost."""
        layers, count = self.cost.layers, len(self.batch)
        depth = [(layers - node.point.layer) / layers for node in self.nodes]
        first = max(depth)
        each = 2 if self.problem.ablation.values else 3
        most = 3.0 + len(self.batch.positions) + sum(each * x + first + 3 / layers for x in depth)
        left = max(0.0, self.budget - self.cost.passes)
        return min(count, max(_LEAST_PROMPTS, int(count * left / most)))

    def _without_feeders(
        self,
        part: Problem,
        runner: Runner,
        node: Site,
        fed: Fed,
        froms: Mapping[Site, Index],
        totals: Mapping[Point, Tensor],
    ) -> tuple[dict[str, Moved], Figure | None]:
        named = {}
        for branch, shares in _feeds(fed, str(node)).items():
            sources = [s for s in self.nodes if abs(shares.get(str(s), 0.0)) >= NAMED]
            sources.sort(key=lambda source: -abs(shares[str(source)]))
            if sources:
                named[branch] = sources[:MOST_NAMED]
        if not named:
            return {}, None
        total = totals[node.point]
        moved, lost = without_feeders(part, runner, node, named, froms[node], total)
        return moved, Figure.of(lost)

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

    def _resampled(self, runner: Runner, node: Site, effects: Float[Tensor, " batch"]) -> float:
        if self.problem.ablation.values or not self.batch.aligned or not float(effects.mean()):
            return math.nan
        values = self.corrupted.at[node.point][: len(runner.batch)]
        _, metric = runner.run(
            ablated([node], Ablation("corrupted", {node.point: values}), runner.batch)
        )
        assert metric is not None
        return abs(float((runner.metric - metric).mean() / effects.mean()))

    def _shifts(
        self, part: Problem, runner: Runner, head: Site, fed: Fed, froms: Mapping[Site, Index]
    ) -> dict[str, Shift]:
        readers = {
            reader.at(None): froms[reader]
            for reader in self.heads
            if abs(fed.shares.get(f"{reader}.q", {}).get(str(head), 0.0)) >= NAMED
        }
        if not readers:
            return {}
        count = len(part.batch)
        patterns = {reader: self.clean.patterns[reader][:count] for reader in readers}
        attended = self._attended(head)[:count]
        attended = attended / attended.sum(-1, keepdim=True).clamp(min=1e-30)
        found = attention_shift(part, runner, head, attended, readers, patterns)
        return {
            str(reader): Shift(Figure.of(x), float((x.sign() == x.mean().sign()).float().mean()))
            for reader, x in found.items()
        }

    def _of_head(
        self, head: Site, copies: tuple[Ratio, float], swap: Followed | None
    ) -> dict[str, Any]:
        whole = head.at(None)
        attention = attending.attention_of(
            self.model, self.clean.patterns[whole], self.matters[head], self.batch
        )
        scores = attending.random_scores(self.random_seen.patterns[whole], self.random)
        own = {"attention": attention, "to": self.to[head][0], "random": scores}
        own |= {"copying": copies[0].value, "copying_random": copies[1]}
        return own | {"followed": swap}

    def _of_any(self, node: Site) -> dict[str, Any]:
        label, at = self.at[node]
        rows = torch.arange(len(at), device=at.device)
        output = along(unit_of(self.clean.at[node.point], node), self.matter[node].directions)
        tokens = self.batch.clean.tokens
        assert tokens is not None
        return {
            "kind": "head" if node.point.kind in HEAD_KINDS else "mlp",
            "matters": by_label(self.matters[node], self.batch.positions),
            "at": label,
            "varies": self._varies(node),
            "by_token": by_token(output, self.matter[node].reach, tokens),
            "favours": tuple(favoured(self.model, self._write(node)[rows, at], self.outputs)),
        }

    def _write(self, node: Site) -> Float[Tensor, "batch position d_model"]:
        """What a node adds to the residual stream beyond its ablation."""
        total = self.clean.at[node.point]
        return node_write(self.model, node, total - self.problem.ablation.at(node.point, total))

    def _direct(self, node: Site) -> Float[Tensor, " batch"]:
        read = self.batch.readout.read
        rows = torch.arange(len(read), device=read.device)
        final = self.clean.at[final_point(self.model)][rows, read]
        direct = direct_effect(self.model, self.batch, final, self._write(node)[rows, read])
        where = position_mask(node, self.batch.clean, self.batch.positions)
        # A node at another position than the one that is read has no direct effect.
        return direct if where is None else torch.where(where[rows, read], direct, 0)

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


def _feeds(fed: Fed, node: str) -> dict[str, dict[str, float]]:
    """By input of a node, its sources, the largest share first."""
    names = {
        label[len(node) :].lstrip("."): x for label, x in fed.shares.items() if _of(label, node)
    }
    return {
        branch: dict(sorted(shares.items(), key=lambda x: -abs(x[1])))
        for branch, shares in names.items()
    }


def _of(label: str, node: str) -> bool:
    return label == node or (label.startswith(f"{node}.") and label[len(node) + 1 :] in "qkv")


def _reads(fed: Fed, node: str) -> dict[str, float]:
    found = {label: x[node] for label, x in fed.shares.items() if abs(x.get(node, 0.0)) >= NAMED}
    return dict(sorted(found.items(), key=lambda x: -abs(x[1])))
