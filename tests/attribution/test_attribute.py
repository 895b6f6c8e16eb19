"""Attribution of words: sums, batches, bad input, and exactness against plain runs."""

import json
import re

import pytest
import torch
from oracles.closeness import assert_close
from oracles.patched import patched

from unweave import cli
from unweave.ablation import activations
from unweave.attribution import attribute, compare_attributions
from unweave.attribution.attribute import RULES
from unweave.attribution.deletion import areas
from unweave.attribution.peers import occlusion, ranked
from unweave.attribution.render import adds_up
from unweave.attribution.target import find_targets
from unweave.attribution.texts import blank, counterfactual_row, read_text
from unweave.behaviours.task import tasks
from unweave.decomposition.api import decompose
from unweave.errors import UnweaveError
from unweave.model.loading import load
from unweave.sites import Point, Site

PAPER = "paper, attention=frozen, clamp=everywhere"
TEXTS = [
    "Who?",
    "What are the main points of this document?",
    "Who signed the unaffable contract in March, and isn't it void?",
    "Summarize.",
]


@pytest.fixture(scope="module")
def classifier():
    return load("question-classifier").to(torch.float64)


def one(model, text, *args, **options):
    found = attribute(model, text, *args, **options)
    assert not isinstance(found, list)
    return found


def test_pieces_are_merged_to_words(classifier):
    words = read_text(classifier, TEXTS[2]).words
    assert [w.text for w in words][4:8] == ["unaffable", "contract", "in", "March"]
    assert len(words[4].tokens) == 3
    assert "isn't" in [w.text for w in words]
    assert [w.fixed for w in words if w.fixed] == [True, True]
    assert [i for w in words for i in w.tokens] == list(
        range(len(read_text(classifier, TEXTS[2]).ids))
    )


@pytest.mark.parametrize("rules", ["paper", PAPER, "paper, attention=frozen, clamp=none"])
@pytest.mark.parametrize("level", [0, 1])
def test_everything_relevant_gives_the_logits(classifier, rules, level):
    several = attribute(classifier, TEXTS, rules=rules, level=level, ablation="zero")
    assert isinstance(several, list)
    for found in several:
        assert found.whole == pytest.approx(found.target.metric, abs=1e-6)
    inputs = classifier.inputs(TEXTS[2])
    everything = decompose(classifier, inputs, "embed", "logits", rules)
    assert everything.rest("logits").abs().max() < 1e-6


def test_every_span_is_complete(classifier):
    inputs = classifier.inputs(TEXTS[1])
    spans = [[f"embed@{i}" for i in range(a, b)] for a in range(9) for b in range(a + 1, 10)]
    found = decompose(classifier, inputs, spans, "logits", PAPER)
    assert found.completeness < 1e-9
    logits = classifier.logits(inputs)
    assert torch.allclose(found.rel["logits"] + found.rest("logits"), logits, atol=1e-9)


def test_removal_equals_plain_runs(classifier):
    found = one(classifier, TEXTS[1], rules="removal", ablation="zero")
    inputs = classifier.inputs(TEXTS[1])
    goal = found.target
    assert len(found.words) > 1
    for word, score in zip(found.words, found.scores, strict=True):
        sites = [Site(Point("embed"), None, i) for i in word.tokens]
        left = patched(classifier.network, inputs, sites, {})[Point("logits")][0, 0]
        assert score == pytest.approx(goal.metric - float(left[goal.answer] - left[goal.other]))


def test_against_padding_both_directions_count(classifier):
    found = one(classifier, TEXTS[1], rules="removal", ablation="padding")
    encoded, goal = read_text(classifier, TEXTS[1]), found.target
    text = classifier.inputs(torch.tensor([encoded.ids]))
    padding = classifier.inputs(torch.tensor([blank(classifier, encoded)]))
    embed, logits = Point("embed"), Point("logits")

    def metric(inputs, sites, other) -> float:
        values = activations(classifier, other, [embed])
        left = patched(classifier.network, inputs, sites, values)[logits][0, 0]
        return float(left[goal.answer] - left[goal.other])

    assert len(found.words) > 1
    for word, score in zip(found.words, found.scores, strict=True):
        sites = [Site(embed, None, i) for i in word.tokens]
        lost = metric(text, [], padding) - metric(text, sites, padding)
        gained = metric(padding, sites, text) - metric(padding, [], text)
        assert score == pytest.approx((lost + gained) / 2, abs=1e-9)


CORRUPTED = "What are the late fees of this document?"


def test_the_ablation_of_a_word_is_its_counterpart(classifier):
    found = one(classifier, TEXTS[1], corrupted=CORRUPTED)
    assert (found.ablation, found.rules) == ("counterfactual", "removal")
    text, other = (classifier.inputs(some) for some in (TEXTS[1], CORRUPTED))
    embed, logits, goal = Point("embed"), Point("logits"), found.target

    def metric(inputs, sites, values) -> float:
        left = patched(classifier.network, inputs, sites, activations(classifier, values, [embed]))
        return float(left[logits][0, 0, goal.answer] - left[logits][0, 0, goal.other])

    assert found.ablated == pytest.approx(metric(other, [], text))
    assert len(found.words) > 1
    for word, score in zip(found.words, found.scores, strict=True):
        sites = [Site(embed, None, i) for i in word.tokens]
        lost = metric(text, [], other) - metric(text, sites, other)
        gained = metric(other, sites, text) - metric(other, [], text)
        assert score == pytest.approx((lost + gained) / 2, abs=1e-9)
        assert (abs(score) > 1e-3) == (word.text in ("main", "points"))


@pytest.mark.parametrize(
    ("corrupted", "row"),
    [
        ("What are the late fees of this document?", "what are the late fees of this document ?"),
        ("What are points of this document?", "what are [PAD] [PAD] points of this document ?"),
        ("What are the big main points of this?", "what are the main points of this [PAD] ?"),
    ],
)
def test_a_word_without_counterpart_is_compared_with_padding(classifier, corrupted, row):
    ids = counterfactual_row(classifier, read_text(classifier, TEXTS[1]), corrupted)
    assert classifier.tokenizer.convert_ids_to_tokens(ids) == ["[CLS]", *row.split(), "[SEP]"]


@pytest.mark.parametrize("corrupted", [None, CORRUPTED])
@pytest.mark.parametrize("rules", [None, "frozen", "removal"])
def test_words_combination_and_remainder_add_up_to_the_metric(classifier, rules, corrupted):
    found = one(classifier, TEXTS[1], rules=rules, corrupted=corrupted)
    row = blank(classifier, read_text(classifier, TEXTS[1]))
    other = classifier.inputs(torch.tensor([row]) if corrupted is None else corrupted)
    logits = classifier.logits(other)[0, 0]
    goal, parts = found.target, found.to_json()["adds_up"]
    assert parts["ablated"] == pytest.approx(float(logits[goal.answer] - logits[goal.other]))
    assert parts["words"] == pytest.approx(sum(found.scores))
    assert parts["words"] + parts["combined"] == pytest.approx(found.whole)
    assert sum(parts.values()) == pytest.approx(goal.metric)
    exact = rules == "removal" or (rules is None and corrupted is not None)
    assert (abs(parts["remainder"]) < 1e-9) == exact
    printed = adds_up(found).partition(" = ")[2]
    assert sum(map(float, re.findall(r"[+-]\d+\.\d+", printed))) == pytest.approx(
        goal.metric, abs=0.003
    )


def test_the_first_word_of_a_prompt_is_no_attention_sink(smollm2):
    """Against padding it is; the pair begins alike, so that the first word does not matter."""
    prompt = tasks["ioi"].prompts(smollm2, 1)[0]
    assert abs(one(smollm2, prompt.clean, *prompt.answers, *prompt.distractors).scores[0]) > 0.3
    found = one(
        smollm2, prompt.clean, *prompt.answers, *prompt.distractors, corrupted=prompt.corrupted
    )
    names = {prompt.clean[start:end] for start, end in prompt.spans.values()}
    for word, score in zip(found.words, found.scores, strict=True):
        assert (abs(score) > 1e-3) == (word.text in names)
    assert found.ranking()[0].text == str(prompt.answers[0]).strip()
    assert abs(found.remainder) < 1e-3 * abs(found.target.metric)


def test_corrupted_texts_and_ablation_agree(classifier):
    for options in (
        {"corrupted": CORRUPTED, "ablation": "zero"},
        {"ablation": "counterfactual"},
    ):
        with pytest.raises(UnweaveError, match="give a corrupted text for each text"):
            attribute(classifier, TEXTS[1], **options)
    with pytest.raises(UnweaveError, match="1 corrupted texts for 2 texts"):
        attribute(classifier, TEXTS[:2], corrupted=[CORRUPTED])


@pytest.mark.parametrize("text", ["The capital of France is", "Question: the capital? Answer:"])
def test_a_target_without_its_space_is_an_error(smollm2, text):
    with pytest.raises(UnweaveError, match=r"'Paris' has no leading space.*write ' Paris'"):
        one(smollm2, text, "Paris")
    with pytest.raises(UnweaveError, match="write ' Rome'"):
        one(smollm2, text, " Paris", "Rome")
    assert one(smollm2, text, smollm2.single_token("Paris")).target.name.startswith("'Paris'")


def test_digits_need_no_space(smollm2):
    assert one(smollm2, "The war lasted from 1734 to 17", "5", "1").target.name == "'5' − '1'"


def test_compare_shows_the_words_of_every_method(classifier, capsys):
    assert cli.main(["attribute", TEXTS[1], "--compare"]) == 0
    printed = [line.split() for line in capsys.readouterr().out.splitlines() if line.split()]
    rows = {name: cells for name, *cells in printed}
    found = compare_attributions(classifier, TEXTS[1])
    for i, word in enumerate(found.words[0]):
        expected = [peer.scores[0][i] for peer in found.peers]
        assert [float(cell) for cell in rows[word.text]] == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("rules", ["frozen", PAPER, "removal"])
@pytest.mark.parametrize("ablation", ["zero", "padding"])
def test_batch_equals_one_at_a_time(classifier, rules, ablation):
    options = {"rules": rules, "ablation": ablation}
    for found, text in zip(attribute(classifier, TEXTS, **options), TEXTS, strict=True):
        alone = one(classifier, text, **options)
        assert found.text == text
        assert found.target.name == alone.target.name
        assert found.scores == pytest.approx(alone.scores, abs=1e-9)


def test_512_tokens_beside_one(classifier):
    model = classifier.to(torch.float32)
    words = ["qxz" * 30] * 40  # so many word pieces that few words fill the model
    while len(model.encode(" ".join(words))[0]) > 512:
        words = words[:-1]
    words += ["why"] * (512 - len(model.encode(" ".join(words))[0]))
    long = " ".join(words)
    found = attribute(model, [long, "Who", TEXTS[1]])
    assert isinstance(found, list)
    assert len(read_text(model, long).ids) == 512
    assert len(found[0].words) == len(words) + 2
    for got, text in ((found[1], "Who"), (found[2], TEXTS[1])):
        alone = torch.tensor(one(model, text).scores)
        assert_close(torch.tensor(got.scores), alone)


def test_interaction_is_the_excess_of_the_joint_score(classifier):
    pair = ("main", "document")
    found = one(classifier, TEXTS[1], phrases=pair, interactions=[pair], ablation="zero")
    inputs = classifier.inputs(TEXTS[1])
    names = [["embed@4"], ["embed@8"], ["embed@4", "embed@8"]]
    rel = decompose(classifier, inputs, names, "logits", RULES).rel["logits"][:, 0, 0]
    a, b, both = (rel[:, found.target.answer] - rel[:, found.target.other]).tolist()
    assert [score for _, score in found.phrases] == pytest.approx([a, b])
    assert found.interactions[0][2] == pytest.approx(both - a - b)


def test_target_and_against(classifier):
    for target, other in (("generic", "directed"), ("directed", "generic")):
        found = one(classifier, TEXTS[1], target)
        assert found.target.name == f"{target} − {other}"
    assert one(classifier, TEXTS[1], 0).scores == one(classifier, TEXTS[1], "generic").scores


def test_language_model(smollm2):
    text = "When Mary and John went to the store, John gave a drink to"
    found = one(smollm2, text, " Mary", " John")
    assert found.target.name == "' Mary' − ' John'"
    by_word = dict(zip([w.text for w in found.words], found.scores, strict=True))
    assert by_word["Mary"] > 0
    with pytest.raises(UnweaveError, match=r"' unaffable' is \d tokens for smollm2-135m"):
        one(smollm2, text, " unaffable")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([""], "the text is empty: give at least one word"),
        (["Who?", "--target", "genric"], "'genric' is not a class of question-classifier: did you"),
        (["Who?", "--target", "9"], "question-classifier has outputs 0–1: found 9"),
        (["Who?", "--target", "generic", "--against", "generic"], "compared with itself"),
        (["Who?", "--phrase", "what"], "the phrase 'what' is 0 times in 'Who?'"),
        (["Who?", "--level", "5"], "resid5: this model has layers 0–2"),
        (["Who?", "--ablation", "mean"], "expected padding or zero"),
        (["Who?", "--rules", "papr"], "unknown rule set 'papr': did you mean paper"),
        (["why " * 600], "has 602 tokens and question-classifier takes at most 512: shorten it"),
        ([], "give a text or a file"),
        (["Who?", "--model", "minilm"], "minilm has no output head"),
        (["--file", "nowhere.txt"], "nowhere.txt cannot be read"),
        (["--file", "nowhere.txt", "--corrupted", "Why?"], "--corrupted is for one text"),
        (["Who?", "--compare", "--level", "1"], "drop --level, --phrase and --corrupted"),
        (["Who?", "--corrupted", "Why?", "--ablation", "zero"], "and no other ablation"),
        (["Who?", "--corrupted", ""], "the corrupted text is empty"),
    ],
)
def test_bad_input_is_one_line_with_code_2(args, message, capsys):
    assert cli.main(["attribute", *args]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert message in said.err
    assert said.err.count("\n") == 1


def test_command(tmp_path, capsys):
    # Words of many pieces: the model is full with few sources.
    assert cli.main(["attribute", " ".join(["qxz" * 30] * 40), "--truncate"]) == 0
    assert "predicted: " in capsys.readouterr().out
    file = tmp_path / "texts.txt"
    file.write_text("\n\n".join(TEXTS))
    assert cli.main(["attribute", "--file", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["text"] for row in found] == TEXTS
    assert found[1]["words"][0] == {**found[1]["words"][0], "text": "[CLS]", "special": True}


def test_html_is_escaped(classifier):
    page = one(classifier, "Is <script>alert('x')</script> & safe?")._repr_html_()
    assert "<script" not in page
    assert "&lt;" in page
    assert "&amp;" in page


def test_occlusion_and_areas_are_plain_runs(classifier):
    text = read_text(classifier, TEXTS[1])
    (goal,) = find_targets(classifier, [text], None, None)

    def metric(words: str) -> float:
        logits = classifier.logits(words)[0, 0]
        return float(logits[goal.answer] - logits[goal.other])

    scores = occlusion(classifier, text, goal)
    assert scores[0] == 0.0
    without = metric("What are the points of this document?")
    assert scores[4] == pytest.approx(goal.metric - without, abs=1e-4 * abs(goal.metric))
    order = ranked(text, [float(-i) for i in range(len(text.words))])
    listed = ["What", "are", "the", "main", "points", "of", "this", "document", "?"]
    leaving = torch.tensor([metric(" ".join(listed[i:]) or "") for i in range(10)])
    coming = torch.tensor([metric(" ".join(listed[:i]) or "") for i in range(10)])
    x = torch.linspace(0, 1, 10)
    expected = [float(torch.trapezoid(y, x)) for y in (leaving, coming)]
    assert areas(classifier, text, goal, order) == pytest.approx(
        expected, abs=1e-4 * abs(goal.metric)
    )


def test_compare_names_what_is_missing(classifier, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "captum.attr", None)
    found = compare_attributions(classifier, TEXTS[:2])
    assert [peer.name for peer in found.peers] == ["unweave", "occlusion"]
    assert "pip install 'unweave[peers]'" in found.missing[0]


def test_integrated_gradients_add_up(classifier):
    pytest.importorskip("captum")
    from unweave.attribution.deletion import subset_metrics
    from unweave.attribution.peers import integrated_gradients

    text = read_text(classifier, TEXTS[1])
    (goal,) = find_targets(classifier, [text], None, None)
    scores = integrated_gradients(classifier, text, goal, steps=200)
    padded = torch.tensor([[101, *[0] * 9, 102]])
    logits = classifier.logits(padded)[0, 0]
    start = float(logits[goal.answer] - logits[goal.other])
    assert sum(scores) == pytest.approx(goal.metric - start, rel=1e-2)
    assert subset_metrics(classifier, text, goal, [tuple(range(11))])[0] == pytest.approx(
        goal.metric
    )
