"""The sentence of a verdict says what its figures say."""

import pytest

from unweave.circuits import Circuit
from unweave.evaluation.checks import Completeness
from unweave.evaluation.faithfulness import Faithfulness
from unweave.evaluation.random_circuits import Draws
from unweave.evaluation.verdict import Verdict


def sentence(value: float, **others: float | None) -> str:
    def at(f: float | None) -> Faithfulness:
        ends = (0.0, 0.0) if f is None else (f - 0.05, f + 0.05)
        return Faithfulness(1.0, 0.0, 1.0, f, ends, 20)

    by_ablation = {"mean": at(value), **{name: at(f) for name, f in others.items()}}
    drawn = (Draws(2, 0.2, (0.1, 1.02)),)
    verdict = Verdict(by_ablation, drawn, Completeness(()), 20, {}, 16)
    circuit = Circuit(
        ("a0.h0", "a0.h1"), (1.0, 1.0), value, value, 10, "t", "m", "cdt", (0.0, 2.0), 20
    )
    return verdict.sentence(circuit)


@pytest.mark.parametrize(
    ("value", "others", "expected"),
    [
        (
            0.97,
            {"zero": 0.2},
            "2 of 10 nodes reproduce the behaviour on 20 new prompts within 3% (± 5%, mean "
            "ablation); with zero ablation they do not; they are nearer to the model than 1 of 2 "
            "random circuits.",
        ),
        (
            0.97,
            {"counterfactual": 1.04, "zero": None},
            "2 of 10 nodes reproduce the behaviour on 20 new prompts within 3% (± 5%, mean "
            "ablation); with counterfactual ablation they do too; with zero ablation they do not; "
            "they are nearer to the model than 1 of 2 random circuits.",
        ),
        (
            0.24,
            {"counterfactual": 1.0, "zero": 0.1},
            "2 of 10 nodes do not reproduce the behaviour on 20 new prompts: faithfulness is 0.24 "
            "± 0.05 (mean ablation); with counterfactual ablation they do; with zero ablation they "
            "do not either; they are nearer to the model than 1 of 2 random circuits.",
        ),
    ],
)
def test_the_sentence(value: float, others: dict[str, float | None], expected: str) -> None:
    assert sentence(value, **others) == expected
