"""Every registered task, with the default model and with tokenizers of other kinds."""

import re
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from unweave.behaviours.accuracy import check_able, task_accuracy
from unweave.behaviours.prompt import Prompt
from unweave.behaviours.task import Task, task, tasks
from unweave.behaviours.words import Words
from unweave.errors import UnweaveError
from unweave.metrics import LOGIT_DIFFERENCE
from unweave.model.loading import load
from unweave.registry import Registry
from unweave.sites import parse
from unweave.testing.task import check_task

TOKENIZERS = ("two-digit BPE", "two-digit BPE with BOS", "one-digit Metaspace", "WordPiece")
LANGUAGE = [name for name in tasks if tasks[name].model is None]
CLASSES = [name for name in tasks if tasks[name].model is not None]
# Tasks that the default model fails: it answers fewer than FAILS_BELOW correctly.
FAILED = ("multiple-choice",)
# What the default model reaches on any seed; measured figures are higher.
FLOORS = {
    "ioi": (4.0, 0.95),
    "greater-than": (0.8, 1.0),
    "docstring": (1.2, 0.8),
    "induction": (3.0, 0.8),
    "sva": (2.0, 0.9),
    "arithmetic": (1.5, 0.75),
}


@pytest.mark.parametrize("name", LANGUAGE)
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_contract_with_other_tokenizers(tokenized, name, kind):
    check_task(tasks[name], tokenized[kind])


@pytest.mark.parametrize("name", LANGUAGE)
def test_contract_with_the_default_model(smollm2, name):
    check_task(tasks[name], smollm2, n=12)


@pytest.mark.parametrize("name", CLASSES)
def test_contract_with_the_classifier(name):
    check_task(tasks[name], load(tasks[name].model), n=12)


@pytest.mark.parametrize("name", CLASSES)
def test_language_model_has_no_classes(smollm2, name):
    with pytest.raises(UnweaveError, match=f"--model {tasks[name].model}"):
        tasks[name].batch(smollm2, 3)


@pytest.mark.parametrize("name", FAILED)
def test_default_model_fails_the_task_and_is_told_so(smollm2, name):
    batch = tasks[name].batch(smollm2, 32)
    with pytest.raises(UnweaveError, match=rf"% of {name} prompts.*no behaviour to explain"):
        check_able(smollm2, batch, name)


@pytest.mark.parametrize("kind", [*TOKENIZERS, "three-digit BPE"])
def test_arithmetic_adds(tokenized, kind):
    width = 2 if kind.startswith("two-digit") else 1
    for prompt in tasks["arithmetic"].prompts(tokenized[kind], 60, templates="all"):
        *solved, asked = prompt.clean.split("\n")
        *same, other = prompt.corrupted.split("\n")
        assert same == solved
        for line in solved:
            a, b, total = map(int, re.findall(r"\d+", line))
            assert a + b == total
        a, b = map(int, re.findall(r"\d+", asked))
        named = {n: int(prompt.clean[start:end]) for n, (start, end) in prompt.spans.items()}
        assert named == {"A": a, "B": b}
        assert [str(answer).strip() for answer in prompt.answers] == [str(a + b)]
        assert prompt.clean.endswith(" ") == (str(prompt.answers[0])[0] != " ")
        assert len(str(a + b)) == width
        assert sum(map(int, re.findall(r"\d+", other))) != a + b
        assert not any(line.startswith(asked) for line in solved)


def test_the_right_letter_names_what_was_said(tokenized):
    letters = set()
    for prompt in tasks["multiple-choice"].prompts(tokenized["WordPiece"], 60, templates="all"):
        named = {n: prompt.clean[start:end] for n, (start, end) in prompt.spans.items()}
        assert named["choice"] == named["colour"]
        assert prompt.answers == (f" {named['letter']}",)
        assert f"\n{named['letter']}. {named['colour']}\n" in prompt.clean
        assert f"\n{named['letter']}. {named['colour']}\n" not in prompt.corrupted
        assert sorted(prompt.clean.replace(".", "").split()) == sorted(
            prompt.corrupted.replace(".", "").split()
        )
        assert len(prompt.distractors) == 3
        letters.add(named["letter"])
    assert letters == set("ABCD")


@pytest.mark.parametrize("name", [name for name in LANGUAGE if name not in FAILED])
def test_default_model_does_the_task(smollm2, name):
    batch = tasks[name].batch(smollm2, 32, seed=7, part="evaluate", only_correct=False)
    metric, correct = task_accuracy(smollm2, batch)
    assert metric >= FLOORS[name][0]
    assert correct >= FLOORS[name][1]


def test_prompts_are_the_same_in_another_process(tokenized):
    batch = tasks["ioi"].batch(tokenized["two-digit BPE"], 5, seed=3)
    code = """
from tiny_tokenizers import byte_level_bpe, tiny
from unweave.behaviours.task import tasks
model = tiny("bpe", byte_level_bpe(digits=2), bos=False)
batch = tasks["ioi"].batch(model, 5, seed=3)
print(*batch.texts, batch.groups.tolist(), sep="\\n")
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
    )
    assert done.stdout.splitlines() == [*batch.texts, str(batch.groups.tolist())]


def test_ioi_has_both_orders_and_abc_corruption(tokenized):
    model = tokenized["two-digit BPE"]
    prompts = tasks["ioi"].prompts(model, 60)
    firsts = {min(prompt.spans, key=lambda name: prompt.spans[name]) for prompt in prompts}
    assert firsts == {"IO", "S1"}
    assert len({prompt.template for prompt in prompts}) == 9
    for prompt in prompts:
        named = {n: prompt.clean[start:end] for n, (start, end) in prompt.spans.items()}
        assert named["S1"] == named["S2"] != named["IO"]
        assert (f" {named['IO']}",) == prompt.answers
        assert not set(named.values()) & set(prompt.corrupted.split())


@pytest.mark.parametrize(
    ("kind", "width"), [("two-digit BPE", 2), ("one-digit Metaspace", 1), ("WordPiece", 1)]
)
def test_greater_than_follows_the_digits_of_a_token(tokenized, kind, width):
    for prompt in tasks["greater-than"].prompts(tokenized[kind], 40):
        start, end = prompt.spans["YY"]
        assert end - start == width
        year = prompt.clean[start : start + 2]
        assert width == 2 or year[1] == "9"
        assert len(prompt.answers) + len(prompt.distractors) == 10**width
        assert all(int(y) > int(year[:width]) for y in prompt.answers)
        assert all(int(y) <= int(year[:width]) for y in prompt.distractors)
        assert prompt.corrupted == prompt.clean[:start] + "01" + prompt.clean[start + 2 :]


def test_greater_than_refuses_tokens_of_three_digits(tokenized):
    with pytest.raises(UnweaveError, match=r"splits 1734 as 173\|4"):
        tasks["greater-than"].prompts(tokenized["three-digit BPE"], 3)


def test_docstring_replaces_what_the_answer_needs(tokenized):
    for prompt in tasks["docstring"].prompts(tokenized["WordPiece"], 20, only_correct=False):
        named = {n: prompt.clean[start:end] for n, (start, end) in prompt.spans.items()}
        assert named["A_def"] == named["A_doc"]
        assert named["B_def"] == named["B_doc"]
        assert prompt.answers == (f" {named['C_def']}",)
        assert len(prompt.distractors) == 5
        assert not any(f" {name}" in prompt.corrupted for name in named.values())


def test_only_correct_keeps_prompts_that_the_model_answers(tokenized):
    model = tokenized["WordPiece"]
    batch = tasks["docstring"].batch(model, 6)
    assert task_accuracy(model, batch).correct == 1.0
    assert len(batch) == 6


def test_induction_pair_is_absent_from_the_corrupted_prompt(tokenized):
    for prompt in tasks["induction"].prompts(tokenized["WordPiece"], 20):
        named = {n: prompt.clean[start:end] for n, (start, end) in prompt.spans.items()}
        assert prompt.clean.endswith(f" {named['A1']}")
        assert (f" {named['B1']}",) == prompt.answers
        assert named["B1"] not in prompt.corrupted


def test_reference_has_this_many_prompts_a_group(tokenized):
    model = tokenized["WordPiece"]
    batch = tasks["ioi"].batch(model, part="reference", per_group=3)
    assert (batch.groups.unique(return_counts=True)[1] == 3).all()


def test_reference_means_are_over_64_prompts_a_group(tokenized):
    batch = tasks["ioi"].batch(tokenized["WordPiece"], part="reference")
    groups, counts = batch.groups.unique(return_counts=True)
    assert len(groups) == 12
    assert (counts == 64).all()


def test_the_search_sees_the_prompts_that_it_saw_before_parts_were_four(smollm2):
    """Runs of earlier versions stay comparable: seed 60 as drawn when there were three."""
    first, second = tasks["ioi"].prompts(smollm2, 2, 60, templates="all")
    assert first.clean == (
        "On Sunday Rebecca and Linda visited the school. Then Rebecca offered a bag to"
    )
    assert second.template == "3"
    (seen,) = tasks["ioi"].prompts(smollm2, 1, 60)
    assert seen == first  # the second has a template that is kept for evaluation


@pytest.mark.parametrize("name", [name for name in LANGUAGE if tasks[name].new_templates])
def test_templates(tokenized, name):
    task, model = tasks[name], tokenized["WordPiece"]
    drawn = {
        choice: task.prompts(model, 200, 3, "evaluate", templates=choice)
        for choice in ("seen", "new", "all")
    }
    kinds = {choice: {p.template for p in prompts} for choice, prompts in drawn.items()}
    assert kinds["new"] == set(task.new_templates)
    assert kinds["seen"] | kinds["new"] == kinds["all"]
    assert not kinds["seen"] & kinds["new"]
    assert task.prompts(model, 200, 3, "evaluate") == drawn["all"]
    assert {p.template for p in task.prompts(model, 200, 3, "check")} == kinds["seen"]
    reference = task.prompts(model, part="reference", per_group=2)
    assert {p.template for p in reference} == kinds["all"]


def test_a_task_of_one_template_has_no_new_ones(tokenized):
    with pytest.raises(UnweaveError, match="greater-than keeps no template for evaluation alone"):
        tasks["greater-than"].prompts(tokenized["WordPiece"], 3, templates="new")


@pytest.mark.parametrize("n", [0, -5, 99999999])
def test_a_count_out_of_range_is_an_error_before_work(tokenized, n):
    for ask in (tasks["ioi"].prompts, tasks["ioi"].require):
        with pytest.raises(UnweaveError, match=f"{n} prompts: expected 1 to 10000"):
            ask(tokenized["WordPiece"], n)


def test_published_circuits():
    ioi = tasks["ioi"].known_circuit("openai-community/gpt2")
    assert ioi is not None
    assert len(set(ioi.nodes)) == 26
    assert parse("a11.h10") in ioi.nodes
    greater = tasks["greater-than"].known["gpt2"]
    assert len(greater.nodes) == 8
    docstring = tasks["docstring"].known["attn-only-4l"]
    assert len(docstring.nodes) == 8
    assert len(set(docstring.augmented)) == 11
    assert tasks["ioi"].known_circuit("smollm2-135m") is None


def test_a_failing_model_is_an_error_that_names_bos_where_it_is_missing(tokenized):
    task = tasks["greater-than"]
    without, with_bos = tokenized["two-digit BPE"], tokenized["two-digit BPE with BOS"]
    # A random model spreads its probability: with most years not greater, it fails.
    hard = [p for p in task.prompts(without, 100) if len(p.answers) < 20]
    with pytest.raises(UnweaveError, match=r"no behaviour to explain.*bos=True"):
        check_able(without, task.encode(without, hard), task.name)
    with pytest.raises(UnweaveError, match="no behaviour to explain") as found:
        check_able(with_bos, task.encode(with_bos, hard), task.name)
    assert "bos=True" not in str(found.value)


def test_typo_is_met_with_the_nearest_name():
    with pytest.raises(UnweaveError, match="did you mean greater-than"):
        tasks["greater_then"]


def test_a_cell_of_a_notebook_may_define_its_task_again() -> None:
    registry: Registry[Task] = Registry("task", "unweave.behaviours.synthetic")

    def define(module: str) -> Task:
        def make(words: Words, n: int, rng: Random) -> list[Prompt]:
            return []

        make.__module__ = module
        return task("mine", metric=LOGIT_DIFFERENCE, registry=registry)(make)

    define("__main__")
    again = define("__main__")
    assert registry["mine"] is again
    with pytest.raises(UnweaveError, match="two tasks are registered as 'mine'"):
        define("somewhere.else")
