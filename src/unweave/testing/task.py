"""`check_task`: the contract of a file in `tasks`."""

from itertools import combinations

import torch

from unweave.batch import Batch
from unweave.behaviours.accuracy import clean_metric
from unweave.behaviours.prompt import Prompt
from unweave.behaviours.sampling import PARTS, Part
from unweave.behaviours.task import Task
from unweave.model.model import Model


def check_task(task: Task, model: Model, n: int = 24) -> None:
    """Checks a task's prompts for one model's tokenizer.

    Seeds give the same prompts again, parts share none, templates kept for evaluation are not
    seen before, clean and corrupted prompts differ,
    positions lie where their words are, answers are single tokens, groups align and each has
    reference prompts, and the metric is finite. Whether the model can do the task does not matter.

    Args:
        task: The task.
        model: Any decoder with a tokenizer, a tiny random one will do; or the task's classifier.
        n: Prompts to draw of each part.

    Raises:
        AssertionError: Naming the first thing that is wrong.
    """
    drawn = {part: _draw(task, model, n, part) for part in PARTS}
    _check_templates(task, model, drawn)
    _check_seeds(task, model, n, drawn["discover"])
    _check_disjoint(drawn | {"other seed": _draw(task, model, n, "discover", seed=1)})
    batches = {part: task.encode(model, prompts) for part, prompts in drawn.items()}
    for part in PARTS:
        _check_texts(model, drawn[part], batches[part])
        _check_positions(task, model, drawn[part], batches[part])
        _check_answers(model, batches[part])
        _check_groups(batches[part])
    known = set(batches["reference"].groups.tolist())
    for part in ("discover", "check", "evaluate"):
        missing = set(batches[part].groups.tolist()) - known
        assert not missing, f"{part}: {len(missing)} groups have no reference prompts"
    few = batches["discover"].select(slice(0, 4))
    assert clean_metric(model, few).isfinite().all(), "the metric is not finite"


def _draw(task: Task, model: Model, n: int, part: Part, seed: int = 0) -> list[Prompt]:
    if part == "reference":
        return task.prompts(model, None, seed, part, per_group=2)
    return task.prompts(model, n, seed, part, only_correct=False)


def _check_seeds(task: Task, model: Model, n: int, drawn: list[Prompt]) -> None:
    assert _draw(task, model, n, "discover") == drawn, "the same seed gives other prompts"
    fewer = _draw(task, model, max(1, n // 2), "discover")
    assert drawn[: len(fewer)] == fewer, "a smaller n does not give the first prompts"
    texts = [prompt.clean for prompt in drawn]
    assert len(set(texts)) == len(texts), "a prompt is there twice"


def _check_templates(task: Task, model: Model, drawn: dict[str, list[Prompt]]) -> None:
    new = set(task.new_templates)
    for part in ("discover", "check"):
        found = {prompt.template for prompt in drawn[part]} & new
        assert not found, f"{part} has prompts of {sorted(found)}, kept for evaluation"
    if new:
        held_out = task.prompts(model, 4, 0, "evaluate", only_correct=False, templates="new")
        assert {prompt.template for prompt in held_out} <= new


def _check_disjoint(drawn: dict[str, list[Prompt]]) -> None:
    for one, other in combinations(drawn, 2):
        if {one, other} == {"discover", "other seed"}:
            continue
        for first, second in ((one, other), (other, one)):
            clean = {prompt.clean for prompt in drawn[first]}
            texts = {text for prompt in drawn[second] for text in (prompt.clean, prompt.corrupted)}
            assert not clean & texts, f"in {first} and {second}: {sorted(clean & texts)[0]!r}"


def _check_texts(model: Model, prompts: list[Prompt], batch: Batch) -> None:
    assert len(batch) == len(prompts)
    for side, texts, read in (
        (batch.clean, batch.texts, batch.readout.read),
        (batch.corrupted, batch.corrupted_texts, batch.read_corrupted),
    ):
        assert side.tokens is not None
        for row, text in enumerate(texts):
            ids = side.tokens[row][side.mask[row]].tolist()
            assert ids == model.encode(text)[0], f"other tokens than those of {text!r}"
            where = len(ids) - 1 if model.family == "decoder" else 0
            assert int(read[row]) == where, f"{text!r} is not read at token {where}"
    for prompt in prompts:
        same = model.encode(prompt.clean)[0] == model.encode(prompt.corrupted)[0]
        assert not same, f"corruption does not change the tokens of {prompt.clean!r}"


def _check_positions(task: Task, model: Model, prompts: list[Prompt], batch: Batch) -> None:
    names = {name for prompt in prompts for name in prompt.spans} | {*task.relative, "end"}
    assert set(batch.positions) == names, f"positions {set(batch.positions)}, expected {names}"
    assert torch.equal(batch.positions["end"], batch.readout.read)
    for row, prompt in enumerate(prompts):
        _, spans = model.encode(prompt.clean)
        for name, (start, end) in prompt.spans.items():
            first, last = spans[int(batch.positions[name][row])]
            word, token = prompt.clean[start:end], prompt.clean[first:last]
            assert first < end <= last, f"{name} is {word!r} but its token is {token!r}"
    for name in task.relative:
        anchor, _, offset = name.rpartition("+")
        assert torch.equal(batch.positions[name], batch.positions[anchor] + int(offset)), name


def _check_answers(model: Model, batch: Batch) -> None:
    answers, others = batch.readout.answers, batch.readout.distractors
    for row, text in enumerate(batch.texts):
        right, wrong = ({i for i in ids[row].tolist() if i >= 0} for ids in (answers, others))
        assert right, f"no answer to {text!r}"
        assert wrong, f"no distractor for {text!r}"
        assert not right & wrong, f"an answer to {text!r} is also a distractor"
        unknown = getattr(model.tokenizer, "unk_token_id", None)
        ends = getattr(model.tokenizer, "eos_token_id", None)
        known = model.network.head.labels or unknown == ends or unknown not in right | wrong
        assert known, f"an unknown answer to {text!r}"


def _check_groups(batch: Batch) -> None:
    lengths = torch.stack((batch.clean.mask.sum(-1), batch.corrupted.mask.sum(-1)), -1)
    for group in batch.groups.unique():
        rows = lengths[batch.groups == group]
        assert (rows == rows[0]).all(), "prompts of one group differ in length"
    if batch.aligned:
        assert torch.equal(lengths[:, 0], lengths[:, 1]), "aligned, but lengths differ"
