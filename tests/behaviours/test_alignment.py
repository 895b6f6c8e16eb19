"""Counterfactual ablations where clean and corrupted prompts differ in length."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles.closeness import assert_close

from unweave.ablation import activations
from unweave.ablations.kind import task_ablation
from unweave.batch import Batch
from unweave.behaviours.alignment import counterparts
from unweave.behaviours.encoding import to_batch
from unweave.behaviours.prompt import Prompt
from unweave.behaviours.task import tasks
from unweave.behaviours.words import Words
from unweave.errors import UnweaveError
from unweave.metrics import LOGIT_DIFFERENCE
from unweave.model.model import Model
from unweave.sites import Point

TOKENS = st.lists(st.integers(0, 5), min_size=1, max_size=12)


@given(TOKENS, TOKENS)
def test_every_token_has_a_counterpart_and_order_is_kept(clean, corrupted) -> None:
    found = counterparts(clean, corrupted)
    assert len(found) == len(clean)
    assert all(0 <= position < len(corrupted) for position in found)
    assert all(a <= b for a, b in pairwise(found))


@given(TOKENS)
def test_a_prompt_is_its_own_counterpart(tokens: list[int]) -> None:
    assert counterparts(tokens, tokens) == list(range(len(tokens)))


@pytest.mark.parametrize(
    ("clean", "corrupted", "expected"),
    [
        ([1, 2, 3], [1, 9, 3], [0, 1, 2]),  # replaced
        ([1, 2, 3], [1, 8, 9, 2, 3], [0, 3, 4]),  # the pair has more
        ([1, 7, 2, 3], [1, 2, 3], [0, 0, 1, 2]),  # the pair lacks one: what comes before it
        ([1, 5, 6, 3], [1, 9, 3], [0, 1, 1, 2]),  # two words for one
        ([7, 1], [1], [0, 0]),
    ],
)
def test_counterparts(clean: list[int], corrupted: list[int], expected: list[int]) -> None:
    assert counterparts(clean, corrupted) == expected


@pytest.fixture
def model(tokenized: dict[str, Model]) -> Model:
    return tokenized["two-digit BPE"]


@pytest.fixture
def batch(model: Model) -> Batch:
    pairs = [
        ("The red ball is on the table", "The red ball is now on the big table"),
        ("A very small cat sat on the chair", "A cat sat on the chair"),
    ]
    prompts = [Prompt(clean, other, answers=(1,), distractors=(2,)) for clean, other in pairs]
    return to_batch(Words(model), prompts, LOGIT_DIFFERENCE)


def test_values_stand_at_their_counterparts(model: Model, batch: Batch) -> None:
    point = Point("z", 1)
    found = task_ablation(tasks["ioi"], model, batch, "counterfactual", [point]).values[point]
    own = activations(model, batch.clean, [point])[point]
    other = activations(model, batch.corrupted, [point])[point]
    assert not batch.aligned
    assert found.shape == own.shape
    for row in range(len(batch)):
        assert batch.clean.tokens is not None
        assert batch.corrupted.tokens is not None
        ours = batch.clean.tokens[row][batch.clean.mask[row]].tolist()
        theirs = batch.corrupted.tokens[row][batch.corrupted.mask[row]].tolist()
        # Attention is causal: before they part, both prompts are one.
        shared = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
        assert torch.equal(found[row, :shared], other[row, :shared])
        assert_close(found[row, :shared], own[row, :shared])
        assert torch.equal(found[row, len(ours) - 1], other[row, len(theirs) - 1])


def test_a_mean_names_the_remedy(model: Model, batch: Batch) -> None:
    with pytest.raises(UnweaveError, match=r"differ in length.*--ablation counterfactual"):
        task_ablation(tasks["ioi"], model, batch, "mean", [Point("z", 1)])
