"""What a run remembers of its model and prompts: no change goes unseen, no other storage counts."""

from dataclasses import replace
from random import Random

import pytest
import torch
from tokenizers import Tokenizer

from unweave.behaviours.file import find_task
from unweave.experiments import fingerprint
from unweave.experiments.fingerprint import weights_hash
from unweave.model.loading import load
from unweave.model.model import Model
from unweave.model.weights import tensors
from unweave.model.window import windowed
from unweave.testing.problem import tiny_problem

TASK = "wired-induction"


@pytest.fixture
def model() -> Model:
    return tiny_problem("llama", dtype=torch.float32).model


@pytest.mark.parametrize("block", [2**18, 64])
def test_every_weight_counts(model: Model, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "_BLOCK", block)
    before, rng = weights_hash(model), Random(0)
    assert weights_hash(model) == before
    for tensor in tensors(model.network):
        flat = tensor.view(-1)
        for place in {0, len(flat) - 1, *(rng.randrange(len(flat)) for _ in range(4))}:
            kept = flat[place].clone()
            flat[place] = torch.nextafter(kept, torch.tensor(torch.inf))
            assert weights_hash(model) != before, (tuple(tensor.shape), place)
            flat[place] = kept
    assert weights_hash(model) == before


def test_the_place_of_a_weight_counts(model: Model) -> None:
    before = weights_hash(model)
    matrix = next(tensor for tensor in tensors(model.network) if tensor.ndim > 1).view(-1)
    matrix[3:5] = matrix[3:5].flip(0)
    assert weights_hash(model) != before


def test_how_weights_are_stored_does_not_count(model: Model) -> None:
    before = weights_hash(model)
    assert weights_hash(replace(model, network=model.network.to(torch.float64))) == before
    stored = model.network.to(torch.bfloat16)
    half = weights_hash(replace(model, network=stored))
    assert half != before
    for network in (windowed(stored, torch.float32), stored.to(torch.float32)):
        assert weights_hash(replace(model, network=network)) == half


def test_another_tokenizer_is_noticed() -> None:
    """Two words swap their tokens: the weights are the same, and the prompts are others."""
    model, task = load(TASK), find_task(TASK)
    before = fingerprint.fingerprint(model, task, 0)
    assert before.keys() == {"model", "prompts"}
    tokenizer = load(TASK).tokenizer
    assert tokenizer is not None
    first, second = task.prompts(model, 1)[0].clean.split()[:2]
    text = tokenizer.backend_tokenizer.to_str()
    for old, new in ((first, "?"), (second, first), ("?", second)):
        text = text.replace(f'"{old}":', f'"{new}":')
    tokenizer._tokenizer = Tokenizer.from_str(text)
    found = fingerprint.fingerprint(replace(model, tokenizer=tokenizer), task, 0)
    assert found["model"] == before["model"]
    assert found["prompts"] != before["prompts"]
