"""One sentence a node, from its measurements and nothing else."""

import math
from collections.abc import Sequence

from unweave.decomposition.paths import ELSEWHERE
from unweave.estimates import NORMAL_95
from unweave.roles.definitions import Check, Undecided
from unweave.roles.inputs import Moved
from unweave.roles.measurements import Feeder, Figure, Measurements
from unweave.roles.shares import is_token

_BRANCHES = {"q": "query", "k": "key", "v": "value", "": "output"}
_RELATIONS = {
    "itself": "its own position",
    "previous": "the token before",
    "duplicate": "an earlier occurrence of the token",
    "induction": "the token after an earlier occurrence",
    "answer": "the answer's token",
    "distractor": "the distractor's token",
}
_MOSTLY = 0.5
_MOST_OF = 0.4  # of a head's attention: as roles.toml asks at least
_OFTEN = 0.2  # of what matters of an MLP, from which the token that it acts on is named
_MOST_READ = 3
_NOTHING = 1e-4
_CLOSE = 0.05  # of two relations this close, the one between tokens is named


def attended(node: Measurements) -> str:
    """What a head attends to most, in words: a labelled position or a relation."""
    name, _ = _largest_target(node)
    return f"the token at {name}" if name.startswith("`") else name or "what it attends to"


def sentence(
    node: Measurements,
    roles: Sequence[tuple[str, Sequence[Check]]],
    undecided: Sequence[Undecided] = (),
) -> str:
    """Where it acts, what it does, what feeds it, what reads it, what is lost without it.

    Args:
        roles: What each role says of the node, with the checks of it.
        undecided: Roles that other prompts could give or take.
    """
    parts = [_acts(node)]
    for says, checks in roles:
        # What attention it has was said at the start.
        said = "" if says.startswith("attends") and "and" not in says else f"it {says}"
        parts += [part for part in (said, _checked(checks)) if part]
    parts += [*_undecided(undecided), *_feeds(node), *_reads(node), _effect(node)]
    return f"{node.node} {'; '.join(parts)}."


def _acts(node: Measurements) -> str:
    at, share = max(node.matters.items(), key=lambda item: item[1])
    where = f"`{at}` ({share:.0%})" if share >= _MOSTLY and at != ELSEWHERE else ""
    if node.attention is None:
        words = f"acts at {where}" if where else f"acts at {_several(node)}"
        most = [f"{token!r} ({x:.0%})" for token, x in node.tokens.items() if x >= _OFTEN]
        words += f", on {_and(most)}" if most else ""
        favours = ", ".join(repr(token) for token in node.favours)
        return f"{words} and promotes {favours} there" if favours else words
    start = f"from {where}" if where else f"from {_several(node)}"
    target, weight = _largest_target(node)
    if not target:
        return f"attends {start} to no one position or token (spread {node.attention.spread:.2f})"
    words = f"attends {start} to {target} ({weight:.0%} of its weight)"
    if not math.isnan(node.copying) and abs(node.copying) >= _MOSTLY:
        words += f", {'copying' if node.copying > 0 else 'suppressing'} it ({node.copying:+.2f})"
    return words


def _several(node: Measurements) -> str:
    named = [(name, share) for name, share in node.matters.items() if share >= 0.1]
    words = [
        f"{'other positions' if name == ELSEWHERE else f'`{name}`'} ({share:.0%})"
        for name, share in sorted(named, key=lambda item: -item[1])
    ]
    return _and(words) if words else "many positions"


def _largest_target(node: Measurements) -> tuple[str, float]:
    """The labelled position, relation or distance with most of the weight, if that is enough."""
    if node.attention is None:
        return "", 0.0
    labels = {f"`{name}`": share for name, share in node.attention.to.items()}
    relations = {_RELATIONS[n]: x for n, x in node.attention.relations.items() if not math.isnan(x)}
    distances = {f"the token {back} back": x for back, x in node.attention.offsets.items()}
    # A label says more than a relation, and a relation between tokens more than the answer's.
    for named in (labels, relations, distances):
        most = max(named.values(), default=0.0)
        if most >= _MOST_OF:
            return next((name, x) for name, x in named.items() if x > most - _CLOSE)
    return "", 0.0


def _checked(checks: Sequence[Check]) -> str:
    words = {True: "held", False: "did not hold", None: "could not be tested"}
    return "; ".join(f"checked: {check.says}: {words[check.held]}" for check in checks)


def _undecided(roles: Sequence[Undecided]) -> list[str]:
    parts = []
    for given, start in ((True, "only just"), (False, "not quite")):
        for name in dict.fromkeys(one.role for one in roles if one.given is given):
            figures = [
                f"{one.measure.replace('_', ' ')} {one.value:.2f} ± {NORMAL_95 * one.error:.2f}, "
                f"{one.limit}"
                for one in roles
                if one.role == name
            ]
            parts.append(f"{start} {name} ({_and(figures)})")
    return parts


def _feeds(node: Measurements) -> list[str]:
    """What each input comes from, as far as its output follows: other claims did not hold."""
    parts, idle = [], []
    for branch in node.feeds:
        feeders, whole = _fed(node, branch), node.moved.get(branch)
        if feeders and whole is not None and not whole.decides:
            idle.append((branch, whole))
            continue
        name = _BRANCHES[branch]
        if feeders and not branch:  # an MLP's share is what its output loses
            parts.append(f"its output comes from {_shares(feeders)}: what it loses without each")
            continue
        used = [feeder for feeder in feeders if feeder.held]
        unused = [feeder for feeder in feeders if feeder.held is False]
        if used:
            words = f"its {name} comes from {_shares(used)}"
            parts.append(f"{words} (checked: {_falls(used, whole)}: held)")
        if unused:
            words = f"in its {name} {'are' if len(unused) > 1 else 'is'} {_shares(unused)}"
            words += f", but that its output follows is not shown (checked: {_falls(unused, whole)}"
            parts.append(f"{words}: did not hold)")
    if idle:
        parts.append(_idle(idle))
    return parts


def _idle(inputs: Sequence[tuple[str, Moved]]) -> str:
    """Inputs that feeders were found of, but whose content does not decide the output."""
    names = _and([f"its {_BRANCHES[branch]}" for branch, _ in inputs])
    falls = _and([_percent(x.output, x.error) for _, x in inputs])
    verb, which = ("hold", "each") if len(inputs) > 1 else ("holds", "that")
    return (
        f"that its output depends on what {names} {verb} is not shown "
        f"(checked: without {which} it falls by {falls})"
    )


def _fed(node: Measurements, branch: str) -> list[Feeder]:
    return [feeder for feeder in node.feeders if feeder.input == branch]


def _shares(feeders: Sequence[Feeder]) -> str:
    return _and([f"{_source(feeder)} ({feeder.share:.0%})" for feeder in feeders])


def _falls(feeders: Sequence[Feeder], whole: Moved | None) -> str:
    """What the output loses without each feeder in this input, and without the whole input."""
    falls = _and([f"{x.falls:.0%}" if x.held else _percent(x.falls, x.error) for x in feeders])
    which = _source(feeders[0]) if len(feeders) == 1 else "each"
    words = f"without {which} there its output falls by {falls}"
    if whole is None:
        return words
    return f"{words}, without its whole {_BRANCHES[feeders[0].input]} by {whole.output:.0%}"


def _percent(fall: float, error: float) -> str:
    return f"{fall:.0%} ± {NORMAL_95 * error:.0%}"


def _source(feeder: Feeder) -> str:
    name = feeder.source
    return f"the token at `{name.partition('@')[2]}`" if is_token(name) else name


def _reads(node: Measurements) -> list[str]:
    listed = []
    for name, share in list(node.reads.items())[:_MOST_READ]:
        head, _, branch = name.rpartition(".")
        into = f"the {_BRANCHES[branch]} of {head}" if branch in ("q", "k", "v") else name
        listed.append(f"{into} ({share:.0%})")
    return [f"it changes {_and(listed)}"] if listed else []


def _effect(node: Measurements) -> str:
    effect = node.effect
    if effect.size < _NOTHING * (1 + abs(effect.mean)):
        return "without it the metric does not change"
    if not effect.clear:
        return (
            f"without it the metric changes by {effect.size:.2g} on a prompt, in either direction"
        )
    verb = "falls" if effect.mean > 0 else "rises"
    words = f"without it the metric {verb} by {_figure(effect)}"
    direct = node.direct_share
    if math.isnan(direct):
        return words
    return (
        f"{words}, {direct:.0%} of it directly"
        if direct >= 0.1
        else f"{words}, through later nodes"
    )


def _figure(x: Figure) -> str:
    return f"{abs(x.mean):.2f} ± {NORMAL_95 * x.error:.2f}"


def _and(items: Sequence[str]) -> str:
    return " and ".join((", ".join(items[:-1]), items[-1])) if len(items) > 1 else items[0]
