"""`validate`: everything that `discover` will check of a task file, before the work begins.

1. Every line is read, and tokenized for the model.
2. Parts: how many prompts there are to search, to check, to evaluate, and for reference means.
3. Accuracy on the discovery prompts, with the prompts that the model answers wrongly.
4. Alignment: pairs of unequal length, and prompts without reference prompts, rule out means.
5. What the user should know but nobody has to change: mirrored pairs, small parts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from unweave.batch import Batch
from unweave.behaviours.accuracy import FAILS_BELOW, Accuracy, check_able, clean_metric
from unweave.behaviours.file import as_task, not_encoded, read_prompts
from unweave.behaviours.prompt import OTHERS, Prompt
from unweave.behaviours.rows import BadLine
from unweave.behaviours.sampling import PARTS, Part
from unweave.behaviours.task import Task
from unweave.errors import UnweaveError
from unweave.model.model import Model

FEW = 20  # evaluation prompts, below which an error is wide


@dataclass(frozen=True)
class Wrong:
    """A discovery prompt that the model answers wrongly."""

    line: int
    clean: str
    metric: float


@dataclass(frozen=True)
class Validation:
    """What is known about a task file.

    Args:
        problems: Bad lines, and what would stop `discover`.
        notes: What to know, each with its consequence.
        prompts: How many there are.
        sizes: How many each part has.
        model, measured, accuracy, wrong: On the discovery prompts, where a model is given.
        needed: How many of them have to be correct, as a share.
        options: What to give `discover` so that it runs.
    """

    problems: tuple[BadLine, ...]
    notes: tuple[str, ...] = ()
    prompts: int = 0
    sizes: Mapping[Part, int] = field(default_factory=dict)
    model: str | None = None
    measured: int = 0
    accuracy: Accuracy | None = None
    wrong: tuple[Wrong, ...] = ()
    needed: float = FAILS_BELOW
    options: tuple[str, ...] = ()

    def to_json(self) -> dict:
        """Everything, for programs."""
        found = asdict(self) | {"problems": [problem._asdict() for problem in self.problems]}
        if self.accuracy is not None:
            found["accuracy"] = self.accuracy._asdict()
        return found


def validate(
    path: str | Path,
    model: Model | None = None,
    first_token: bool = False,
    only_correct: bool = False,
) -> Validation:
    """Checks a task file, and what `discover` will check with a model.

    Args:
        path: The file.
        model: The model to use it with; None checks the file alone.
        first_token: Whether the first token of a longer answer may stand for it.
        only_correct: Whether to keep only the prompts that the model answers correctly.
    """
    path = Path(path)
    prompts, problems = read_prompts(path)
    if model is not None and prompts:
        problems += not_encoded(prompts, model, first_token)
    if problems:
        return Validation(tuple(sorted(problems)), prompts=len(prompts))
    task = as_task(path, prompts)
    if task.sizes is not None and task.sizes["evaluate"] < 2:
        reason = "1 prompt to evaluate on gives no error of faithfulness: write 6 lines or more"
        return Validation((BadLine(0, reason),), (), len(prompts), task.sizes)
    task = replace(task, first_token=first_token, only_correct=only_correct)
    assert task.sizes is not None
    notes = (*_mirrored([prompt for _, prompt in prompts]), *_few(task.sizes))
    found = Validation((), notes, len(prompts), task.sizes)
    return found if model is None else _with_model(found, task, model, prompts)


def is_labelled(path: str | Path) -> bool:
    """Whether the lines of a file have labels, which only a classifier can give."""
    prompts, _ = read_prompts(Path(path))
    return bool(prompts) and prompts[0][1].distractors == (OTHERS,)


def _with_model(
    found: Validation, task: Task, model: Model, prompts: Sequence[tuple[int, Prompt]]
) -> Validation:
    lines = {prompt.clean: line for line, prompt in prompts}
    batches = {part: task.batch(model, part=part, only_correct=False) for part in PARTS}
    batch = batches["discover"]
    values = clean_metric(model, batch)
    correct = (values > 0).float().mean().item()
    wrong = [
        Wrong(lines[text], text, value)
        for text, value in zip(batch.texts, values.tolist(), strict=True)
        if not value > 0
    ]
    problems, notes, options = [], list(found.notes), []
    try:
        for part in ("discover", "evaluate"):
            drawn = task.batch(model, part=part)  # with only_correct, those alone
            if part == "discover":
                check_able(model, drawn, task.name)
    except UnweaveError as error:
        problems.append(BadLine(0, str(error)))
    if task.only_correct:
        options.append("--only-correct")
        kept = f"{len(batch) - len(wrong)} of {len(batch)} discovery prompts"
        notes.append(f"--only-correct keeps {kept}: the circuit explains those alone")
    elif wrong and not problems:
        notes.append(
            f"{len(wrong)} of {len(batch)} discovery prompts are answered wrongly and count "
            "against the behaviour: --only-correct leaves such prompts out"
        )
    if unaligned := _unaligned(batches):
        notes.append(unaligned)
        options.append("--ablation counterfactual")
    return replace(
        found,
        problems=tuple(problems),
        notes=tuple(notes),
        model=model.name,
        measured=len(batch),
        accuracy=Accuracy(values.mean().item(), correct),
        wrong=tuple(sorted(wrong, key=lambda one: one.line)),
        options=(*options, "--first-token") if task.first_token else tuple(options),
    )


def _unaligned(batches: Mapping[str, Batch]) -> str | None:
    """Why a mean over reference prompts is not possible, if so."""
    means = "so a mean over prompts is not possible"
    remedy = "--ablation counterfactual compares each token with its counterpart in its own pair"
    differ = sum(
        int((batch.clean.mask.sum(-1) != batch.corrupted.mask.sum(-1)).sum())
        for batch in batches.values()
    )
    if differ:
        total = sum(map(len, batches.values()))
        return f"{differ} of {total} pairs differ in their number of tokens, {means}: {remedy}"
    known = set(batches["reference"].groups.tolist())
    alone = {
        part: sum(group not in known for group in batch.groups.tolist())
        for part, batch in batches.items()
    }
    if any(alone.values()):
        return (
            f"{sum(alone.values())} prompts have no reference prompt of their template and length, "
            f"{means}: write more prompts of one length, or {remedy}"
        )
    return None


def _mirrored(prompts: Sequence[Prompt]) -> list[str]:
    pairs = {(prompt.clean, prompt.corrupted) for prompt in prompts}
    mirrored = sum((corrupted, clean) in pairs for clean, corrupted in pairs) // 2
    if not mirrored:
        return []
    return [
        f"{mirrored} pairs of lines mirror each other (clean and corrupted swapped): both lines "
        "stay in one part, so that parts are sized by pairs, and a mean over corrupted prompts "
        "holds both answers alike"
    ]


def _few(sizes: Mapping[Part, int]) -> list[str]:
    count = sizes["evaluate"]
    if count >= FEW:
        return []
    return [
        f"the reported faithfulness will come from {count} prompts, with a wide error: "
        f"{5 * FEW} lines give {FEW}"
    ]
