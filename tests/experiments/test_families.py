"""Circuits of encoders and encoder-decoders: every method and ablation, from a file of prompts."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from oracles.closeness import assert_close
from oracles.tiny import tiny_model
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from unweave import attribute
from unweave.attribution.attribute import Attribution
from unweave.errors import UnweaveError
from unweave.experiments.discover import discover
from unweave.experiments.specification import Experiment, Specification
from unweave.model.loading import load
from unweave.model.model import Model
from unweave.report.html import write_report
from unweave.scores.problem import Problem
from unweave.scores.score import scores
from unweave.search.search import searches

MASKED = [("bert", "masked lm"), ("distilbert", "masked lm"), ("electra", "masked lm")]
TRANSLATORS = [("t5", None), ("marian", None), ("bart", None)]
CASES = MASKED + TRANSLATORS
SPECIAL = ["<pad>", "</s>", "<unk>", "<mask>"]
WORDS = [f"w{i}" for i in range(40)]


def made(name: str, variant: str | None) -> Model:
    """A tiny model with random weights and a tokenizer of words."""
    vocabulary = {word: i for i, word in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    names = dict(zip(("pad_token", "eos_token", "unk_token", "mask_token"), SPECIAL, strict=True))
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    return replace(tiny_model(name, variant), tokenizer=wrapped, name=name)


def write(path: Path, model: Model, lengths: tuple[int, int] = (5, 5)) -> str:
    """Prompts that the model answers correctly: the answer is what it says."""
    rng, lines = Random(0), []
    masked = model.family == "encoder"
    for _ in range(24):
        clean, corrupted = (rng.sample(WORDS, length) for length in lengths)
        if masked:
            clean[2] = corrupted[2] = "<mask>"
        logits = model.logits(" ".join(clean))[0, 2 if masked else -1, len(SPECIAL) :]
        first, second = (WORDS[i] for i in logits[: len(WORDS)].topk(2).indices.tolist())
        prompts = {"clean": " ".join(clean), "corrupted": " ".join(corrupted)}
        lines.append(json.dumps({**prompts, "answer": first, "distractor": second}))
    path.write_text("\n".join(lines))
    return str(path)


@pytest.mark.parametrize(("name", "variant"), CASES)
@pytest.mark.parametrize("ablation", ["mean", "counterfactual", "zero"])
def test_every_score_and_search_knows_the_nodes(
    name: str, variant: str | None, ablation: str, tmp_path: Path
) -> None:
    model = made(name, variant)
    file = write(tmp_path / "prompts.jsonl", model)
    how = Specification(file, name, ablation=ablation, mlps=True, prompts=4, held_out=4)
    experiment = Experiment.set_up(how, model)
    held_out, discovery = experiment.held_out, experiment.discovery
    full, empty = held_out.faithfulness([held_out.nodes, ()]).tolist()
    assert (full, empty) == pytest.approx((1, 0))
    exact = _removed_one_by_one(discovery)
    for score in scores:
        found = scores[score].run(discovery)
        assert {*found.sources} == {*map(str, discovery.nodes)}
        if score == "patching":
            assert_close(found.values, exact)
    for search in searches:
        finding = searches[search].run(discovery, scores["eap"].run(discovery))
        assert {*finding.ranking} == {*map(str, discovery.nodes)}
        assert {*finding.circuit} <= {*finding.ranking}


def _removed_one_by_one(problem: Problem) -> torch.Tensor:
    """What the metric loses with each node, by plain runs of circuits."""
    every = problem.nodes
    left = [tuple(node for node in every if node != gone) for gone in every]
    metric = problem.metric([every, *left]).mean(1)
    return metric[0] - metric[1:]


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_runs_with_a_report(name: str, variant: str | None, tmp_path: Path) -> None:
    model = made(name, variant)
    file = write(tmp_path / "prompts.jsonl", model, lengths=(5, 6))
    how = Specification(file, name, ablation="counterfactual", prompts=4, held_out=4)
    circuit = discover(model, file, how, tmp_path / "run")
    assert circuit.nodes
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    words = [word["text"] for word in record["words"]["words"]]
    assert words == [*record["prompts"]["evaluate"][0]["clean"].split(), "</s>"]
    assert write_report([tmp_path / "run"]).stat().st_size > 100_000
    # Mean ablation has no position to stand at, and says what to do instead.
    with pytest.raises(UnweaveError, match="--ablation counterfactual"):
        discover(model, file, Specification(file, name, prompts=4, held_out=4))


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_all_words_together_are_the_logits(name: str, variant: str | None) -> None:
    model = made(name, variant)
    text = "w1 w2 <mask> w4" if model.family == "encoder" else "w1 w2 w3 w4"
    paper = "paper, attention=frozen, clamp=everywhere"
    found = attribute(model, [text, "w7 <mask>"], rules=paper, ablation="zero")
    alone = [attribute(model, t, rules=paper, ablation="zero") for t in (text, "w7 <mask>")]
    assert isinstance(found, list)
    for one, other in zip(found, alone, strict=True):
        assert isinstance(other, Attribution)
        assert one.scores == pytest.approx(other.scores, abs=1e-9)
        if model.family == "encoder":
            assert one.whole == pytest.approx(one.target.metric, abs=1e-6)


def test_texts_beyond_the_limit_are_named(tmp_path: Path) -> None:
    model = made(*MASKED[0])
    file = write(tmp_path / "prompts.jsonl", model)
    limit, lines = model.token_limit, Path(file).read_text()
    Path(file).write_text(lines.replace("<mask>", "<mask>" + " w9" * 100))
    with pytest.raises(UnweaveError, match=rf"clean text 'w.* tokens and bert takes .* {limit}:"):
        discover(model, file, Specification(file, "bert", prompts=4, held_out=4))
    with pytest.raises(UnweaveError, match="text 2 of 2 has 101 tokens"):
        model.logits(["w1", "w9 " * 100])


def test_answers_and_targets_that_no_token_stands_for(tmp_path: Path) -> None:
    model = made("t5", None)
    with pytest.raises(UnweaveError, match="'nothere' is not in the vocabulary of t5"):
        attribute(model, "w1 w2", "nothere")
    file = Path(write(tmp_path / "prompts.jsonl", model))
    file.write_text(file.read_text().replace('"answer": "w', '"answer": "x'))
    with pytest.raises(UnweaveError, match="is not in the vocabulary of t5"):
        discover(model, str(file), Specification(str(file), "t5", prompts=4, held_out=4))


def test_half_of_a_real_classifiers_heads_are_enough() -> None:
    model = load("question-classifier")
    how = Specification("question-type", model.name, options={"max_size": 2}, held_out=50)
    circuit = discover(model, "question-type", how)
    assert len(circuit.nodes) <= len(model.heads()) / 2
    assert abs(1 - circuit.faithfulness) <= 0.1


def test_positions_of_two_texts_have_no_names(tmp_path: Path) -> None:
    model = made("t5", None)
    file = write(tmp_path / "prompts.jsonl", model)
    how = Specification(file, "t5", granularity="head@position", prompts=4, held_out=4)
    with pytest.raises(UnweaveError, match="use head"):
        discover(model, file, how)


def test_cross_attention_is_among_the_nodes(tmp_path: Path) -> None:
    model = made("t5", None)
    file = write(tmp_path / "prompts.jsonl", model)
    experiment = Experiment.set_up(Specification(file, "t5", prompts=4, held_out=4), model)
    kinds = {(node.point.stack, node.point.kind) for node in experiment.nodes}
    assert kinds == {("enc", "z"), ("", "z"), ("", "cz")}
