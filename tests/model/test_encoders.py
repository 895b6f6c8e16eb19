"""What the encoder families' files do beyond the tiny models of the contract suite."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from unweave.errors import UnweaveError
from unweave.model.checkpoint import Checkpoint, Tiny, architectures, read_network
from unweave.model.loading import load, oracle
from unweave.testing import find_parity
from unweave.testing.architecture import network_of
from unweave.testing.oracle import build

BERT = architectures["bert"].tiny


def checkpoint_of(model: Any) -> Checkpoint:
    config = model.config
    state = dict(model.state_dict())
    return Checkpoint(config.to_dict(), type(config)().to_dict(), state, type(model).__name__)


def without(checkpoint: Checkpoint, *names: str) -> Checkpoint:
    kept = {name: t for name, t in checkpoint.tensors.items() if name not in names}
    return replace(checkpoint, tensors=kept)


def test_labels_are_in_the_order_of_the_outputs():
    names = {str(i): f"class {i}" for i in (10, 2, 0, 1, 3, 4, 5, 6, 7, 8, 9)}
    model = build(Tiny("BertForSequenceClassification", BERT["classifier"].config))
    network = network_of(model, {"id2label": names})
    assert network.head.labels == tuple(f"class {i}" for i in range(11))


@pytest.mark.parametrize(
    ("family", "model_class"),
    [
        ("bert", "BertForTokenClassification"),
        ("roberta", "RobertaForTokenClassification"),
        ("distilbert", "DistilBertForTokenClassification"),
        ("mpnet", "MPNetForTokenClassification"),
        ("electra", "ElectraForTokenClassification"),
        ("vit", "ViTForMaskedImageModeling"),
        ("t5", "T5ForTokenClassification"),
        ("bart", "BartForSequenceClassification"),
        ("marian", "MarianForCausalLM"),
    ],
)
def test_a_head_without_a_mapping_is_refused(family: str, model_class: str):
    tiny = next(iter(architectures[family].tiny.values()))
    whole = checkpoint_of(build(tiny))
    with pytest.raises(UnweaveError, match=f"{model_class} has a head that unweave does not know"):
        read_network(family, replace(whole, model_class=model_class))


def test_heads_left_over_from_pre_training_are_skipped():
    model = build(BERT["masked lm"])
    whole = checkpoint_of(model)
    extra = {"bert.pooler.dense.weight": torch.ones(2), "cls.seq_relationship.bias": torch.ones(2)}
    network = read_network("bert", replace(whole, tensors={**whole.tensors, **extra}))
    assert find_parity(network, model).passed


@pytest.mark.parametrize(
    ("family", "variant", "tied"),
    [
        ("bert", "masked lm", ["cls.predictions.decoder.weight", "cls.predictions.decoder.bias"]),
        ("roberta", "masked lm", ["lm_head.decoder.weight", "lm_head.decoder.bias"]),
        ("distilbert", "masked lm", ["vocab_projector.weight"]),
        ("electra", "masked lm", ["generator_lm_head.weight"]),
        ("t5", "relu", ["lm_head.weight", "encoder.embed_tokens.weight"]),
        ("bart", "tied", ["lm_head.weight", "model.decoder.embed_tokens.weight"]),
    ],
)
def test_tied_weights_need_not_be_in_the_checkpoint(family: str, variant: str, tied: list[str]):
    model = build(architectures[family].tiny[variant])
    network = read_network(family, without(checkpoint_of(model), *tied))
    assert find_parity(network, model).passed


def test_minilm_equals_transformers():
    report = find_parity(load("minilm").network, oracle("minilm"), "minilm")
    assert report.passed, str(report)
    assert report.agreement == 1.0
