"""The verdict on a circuit: should a reader believe it? A quick check inside `discover`.

Faithfulness under every ablation with its error, random circuits of the same size, what the circuit
misses (completeness) and what it could lose (minimality, from the evidence on its nodes). One plain
sentence says it; `unweave evaluate` measures more precisely.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from unweave.circuits import Circuit
from unweave.evaluation.checks import Completeness, completeness
from unweave.evaluation.faithfulness import Faithfulness, by_ablation, by_templates
from unweave.evaluation.random_circuits import Draws, random_circuits
from unweave.scores.problem import N, Runs

_DRAWS = 5  # random circuits, and knocked-out parts of the circuit
_PROMPTS = 24  # that these are run on
NEAR = 0.1  # |1 − f| up to which a circuit reproduces the behaviour


@dataclass(frozen=True)
class Verdict:
    """What was found out about a circuit on held-out prompts.

    Args:
        faithfulness: By ablation, the one of the search first.
        templates: By kind ("seen", "new"), under the first ablation; empty where the task keeps no
            templates from the search.
        random: Random circuits of the circuit's size; they and completeness on `prompts` prompts.
        effects: What faithfulness loses without each node, on `checked` other prompts.
        overshoot: Nodes outside that lower the metric, where faithfulness is above 1.
    """

    faithfulness: Mapping[str, Faithfulness]
    random: tuple[Draws, ...]
    completeness: Completeness
    prompts: int
    effects: Mapping[str, float]
    checked: int
    overshoot: Mapping[str, float] = field(default_factory=dict)
    templates: Mapping[str, Faithfulness] = field(default_factory=dict)

    @property
    def idle(self) -> tuple[str, ...]:
        """Nodes that the circuit would hardly miss."""
        return tuple(name for name, effect in self.effects.items() if abs(effect) < 0.01)

    def sentence(self, circuit: Circuit) -> str:
        """The verdict in words, made from the figures and nothing else."""
        (first, main), *others = self.faithfulness.items()
        parts, works = [_main(circuit, first, main)], _near(circuit.faithfulness)
        good = [name for name, one in others if one.value is not None and _near(one.value)]
        bad = [name for name, one in others if one.value is None or not _near(one.value)]
        if good:
            parts.append(f"with {' and '.join(good)} ablation they do" + (" too" if works else ""))
        if bad:
            either = "" if works else " either"
            parts.append(f"with {' and '.join(bad)} ablation they do not{either}")
        beaten = sum(
            abs(1 - f) > abs(1 - circuit.faithfulness) for d in self.random for f in d.faithfulness
        )
        drawn = sum(len(d.faithfulness) for d in self.random)
        parts.append(f"they are nearer to the model than {beaten} of {drawn} random circuits")
        sentence = "; ".join(parts) + "."
        if self.overshoot:
            names = ", ".join(list(self.overshoot)[:3])
            sentence += f" Faithfulness is above 1 because {names} outside lower the metric."
        return sentence

    def to_json(self, circuit: Circuit) -> dict[str, Any]:
        """The record that `run.json` holds."""
        gaps = {"mean_gap": self.completeness.mean, "worst_gap": self.completeness.worst}
        return {
            "sentence": self.sentence(circuit),
            "prompts": self.prompts,
            "faithfulness": {name: asdict(one) for name, one in self.faithfulness.items()},
            "templates": {name: asdict(one) for name, one in self.templates.items()},
            "random": [asdict(one) for one in self.random],
            "completeness": asdict(self.completeness) | gaps,
            "minimality": {
                "effects": dict(self.effects),
                "idle": list(self.idle),
                "prompts": self.checked,
            },
        }


def _near(value: float) -> bool:
    return abs(1 - value) <= NEAR


def _main(circuit: Circuit, name: str, found: Faithfulness) -> str:
    nodes = circuit.parts
    value = circuit.faithfulness
    error = (found.interval[1] - found.interval[0]) / 2
    if _near(value):
        return (
            f"{nodes} reproduce the behaviour on {found.prompts} new prompts within "
            f"{abs(1 - value):.0%} (± {error:.0%}, {name} ablation)"
        )
    return (
        f"{nodes} do not reproduce the behaviour on {found.prompts} new prompts: faithfulness is "
        f"{value:.2f} ± {error:.2f} ({name} ablation)"
    )


def verdict(
    problems: Mapping[str, Runs[N]],
    circuit: Sequence[N],
    effects: Mapping[str, float],
    checked: int,
    overshoot: Mapping[str, float],
    seed: int,
    new_templates: Collection[str] = (),
) -> Verdict:
    """Checks a circuit on held-out prompts.

    Args:
        problems: By ablation, the one of the search first.
        effects: What faithfulness loses without each node, on `checked` prompts.
        overshoot: Nodes outside that lower the metric, where faithfulness is above 1.
        new_templates: Those that the search never saw.
    """
    main = next(iter(problems.values()))
    metric = main.metric([tuple(circuit)])[0]
    some = main.select(slice(0, _PROMPTS))
    share = len(circuit) / len(main.nodes)
    return Verdict(
        by_ablation(problems, circuit, metric),
        random_circuits(some, (share,), _DRAWS, seed),
        completeness(some, circuit, _DRAWS, seed),
        len(some.batch),
        effects,
        checked,
        overshoot,
        by_templates(main, metric, new_templates),
    )
