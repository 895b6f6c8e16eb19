"""Algorithm 1 of the CD-T paper, as printed (docs/method.md §5).

1. The targets T are the logits. 2. Every node upstream of T gets its relevance R(s, T).
3. The best of them, S, join the circuit C; targets and nodes that joined before are not in the
running. 4. Refinement: each node of C in turn leaves when the metric is larger without it, until a
whole pass changes nothing. 5. It ends when |m(C) − m(M)| is below the tolerance, when m(C) is not
larger than in the round before, or when nothing is upstream of T. 6. Otherwise T ← S.

The ranking is the order of joining: by relevance, round after round, before any pruning.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from unweave.circuits import Scores
from unweave.errors import UnweaveError
from unweave.options import Option, Options
from unweave.progress import progress
from unweave.scores.problem import Problem
from unweave.search.loss import Loss
from unweave.search.search import (
    TOLERANCE,
    Finding,
    RoundsState,
    SavedState,
    Search,
    Step,
    measured_round,
    read_state,
    searches,
)
from unweave.sites import Site, parse

LOGITS = ("logits",)
_RULES = ("top", "fraction", "percentile", "outliers")


def parse_rule(text: str) -> tuple[str, float]:
    """Reads a rule of selection such as "percentile:95".

    Raises:
        UnweaveError: For an unknown rule, or a number that makes no sense for it.
    """
    kind, _, number = text.partition(":")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    high = {"fraction": 1.0, "percentile": 100.0}.get(kind, 1e9)
    whole = kind != "top" or value.is_integer()
    if kind not in _RULES or not 0 < value <= high or not whole:
        raise UnweaveError(
            f"select {text!r}: expected top:N, fraction:F (above 0, to 1), percentile:P (to 100) "
            "or outliers:Z (standard deviations above the mean)"
        )
    return kind, value


def select(values: Float[Tensor, " node"], rule: str) -> list[int]:
    """Which of the candidates are picked by their relevance's magnitude, the largest first."""
    kind, number = parse_rule(rule)
    if not len(values):
        return []
    size = values.abs()
    if kind == "top":
        count = int(number)
    elif kind == "fraction":
        count = max(1, round(number * len(size)))
    elif kind == "percentile":
        count = int((size >= torch.quantile(size, number / 100)).sum())
    else:
        count = int((size > size.mean() + number * size.std(correction=0)).sum())
    order = torch.argsort(size, descending=True, stable=True).tolist()
    return [i for i in order[:count] if size[i] > 0]


def relevance_to(
    scores: Scores, targets: Sequence[str], options: Options
) -> Float[Tensor, " source"]:
    """R(s, T): the score for the logits, else the sum over the targets (eq. 16)."""
    if tuple(targets) == LOGITS:
        values = scores.values
    else:
        columns = [scores.targets.index(target) for target in targets if target in scores.targets]
        values = scores.pairs[options["measure"]][:, columns].sum(1)
    if not options["normalise"]:
        return values
    layers = [(site.point.stack, site.point.layer) for site in map(parse, scores.sources)]
    mean = torch.ones_like(values)
    for layer in set(layers):
        here = torch.tensor([one == layer for one in layers])
        size = values[here].abs().mean()
        mean[here] = size if size > 0 else 1.0
    return values / mean


@dataclass(eq=False)
class _PruningState(RoundsState):
    """With the pruning of the present round: whose turn it is, and whether this pass changed."""

    cursor: int = 0
    changed: bool = False


def find(problem: Problem, scores: Scores, options: Options, checkpoint: SavedState) -> Finding:
    """Runs rounds until one of the paper's rules says stop."""
    state = read_state(_PruningState, checkpoint)
    loss = Loss.of(problem)
    while not _finished(problem, scores, state, options):
        last = state.rounds[-1] if state.rounds else None
        targets = LOGITS if last is None else last.selected
        values = relevance_to(scores, targets, options)
        candidates = _candidates(problem, state, targets)
        index = {name: i for i, name in enumerate(scores.sources)}
        picked = select(values[[index[str(node)] for node in candidates]], options["select"])
        chosen = [candidates[i] for i in picked]
        if not chosen:
            break
        before = () if last is None else tuple(map(parse, last.circuit))
        joined = (*before, *chosen)
        kept = _prune(problem, joined, loss, state, checkpoint) if options["prune"] else joined
        relevance = dict(zip(scores.sources, values.tolist(), strict=True))
        state.rounds.append(
            measured_round(
                problem, kept, relevance, joined, targets, selected=chosen, steps=state.steps
            )
        )
        state.steps, state.cursor, state.changed = [], 0, False
        state.save(checkpoint)
    if not state.rounds:
        raise UnweaveError(
            f"select {options['select']!r} chose no node: every score is 0; use another score or "
            "rule set"
        )
    order = [name for one in state.rounds for name in one.selected]
    ranking = tuple(dict.fromkeys((*order, *scores.ranking())))
    return Finding(state.rounds[-1].circuit, ranking, tuple(state.rounds))


def _finished(problem: Problem, scores: Scores, state: _PruningState, options: Options) -> bool:
    """The paper's rules; a score without relevance between nodes has nothing to go on from."""
    if not state.rounds:
        return False
    if len(state.rounds) >= options["rounds"] or not scores.pairs:
        return True
    last = state.rounds[-1]
    if abs(1 - last.faithfulness) < options["tolerance"]:
        return True
    # m(C) grows with faithfulness where m(M) > m(∅), and falls where it is the other way round.
    sign = 1 if float(problem.reference.scale) > 0 else -1
    before = [sign * one.faithfulness for one in state.rounds[-2:]]
    return len(before) == 2 and before[1] <= before[0]


def _candidates(problem: Problem, state: _PruningState, targets: Sequence[str]) -> list[Site]:
    """Nodes upstream of a target that neither are one nor joined before."""
    joined = {name for one in state.rounds for name in one.selected} | set(targets)
    deepest = max(parse(target).point.depth for target in targets)
    return [
        node for node in problem.nodes if node.point.depth < deepest and str(node) not in joined
    ]


def _prune(
    problem: Problem,
    circuit: tuple[Site, ...],
    loss: Loss,
    state: _PruningState,
    checkpoint: SavedState,
) -> tuple[Site, ...]:
    """Greedy pruning by the metric, one node after the other, until a pass changes nothing.

    Decisions are those of one run at a time: all nodes that are left of a pass are tried in one
    batch, and the first that leaves ends what is valid of it.
    """
    gone = state.gone
    kept = [node for node in circuit if str(node) not in gone]
    metric = problem.metric([tuple(kept)])[0]
    with progress("Pruning the circuit", len(circuit)) as advance:
        advance(len(gone))
        while len(kept) > 1:
            if state.cursor >= len(kept):
                if not state.changed:
                    break
                state.cursor, state.changed = 0, False
            tried = problem.flipped(kept, kept[state.cursor :])
            better = (tried.mean(1) > metric.mean()).nonzero().flatten().tolist()
            if not better:
                state.cursor = len(kept)
                continue
            state.cursor += better[0]
            node, metric = kept.pop(state.cursor), tried[better[0]]
            value = metric[None]
            state.steps.append(
                Step(
                    len(kept),
                    float(loss(value)[0]),
                    float(loss.faithfulness(value)[0]),
                    (str(node),),
                    len(metric),
                )
            )
            state.changed = True
            state.save(checkpoint)
            advance(1)
    return tuple(kept)


searches.register("algorithm1")(
    Search(
        "algorithm1",
        "the paper's: rounds of selection by relevance, each pruned by the metric",
        find,
        {
            "select": Option(
                "percentile:95",
                "who joins: top:N, fraction:F, percentile:P or outliers:Z (standard deviations)",
                check=parse_rule,
            ),
            "prune": Option(True, "whether nodes leave that lower the metric"),
            "tolerance": TOLERANCE,
            "rounds": Option(10, "rounds at most", low=1),
            "measure": Option(
                "ratio",
                "relevance to inner targets: ratio (eq. 16), share or signed",
                choices=("ratio", "share", "signed"),
            ),
            "normalise": Option(False, "divide relevance by its mean magnitude in a layer"),
        },
        pairs=True,
    )
)
