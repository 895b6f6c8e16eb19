"""MIB's datasets by name, loaded by the real package `datasets` from folders and from its cache."""

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pytest
from datasets import config
from huggingface_hub import constants
from mib_data import WIRED, wired_rows, write

from unweave import cli
from unweave.behaviours import mib_hub
from unweave.behaviours.file import find_task, read_task
from unweave.behaviours.sampling import PARTS
from unweave.behaviours.words import Words
from unweave.errors import UnweaveError
from unweave.experiments.discover import discover
from unweave.experiments.fingerprint import fingerprint
from unweave.experiments.specification import Specification
from unweave.model.loading import load
from unweave.model.model import Model

IOI, COLOURS, SUMS = "mib-bench/ioi", "mib-bench/copycolors_mcqa", "mib-bench/arithmetic_addition"
NAMES = ("Mary", "John", "Tom", "Anna")
THINGS = ("book", "ball", "drink", "ring", "key")


def ioi(place: str) -> list[dict[str, Any]]:
    """Rows of sixty prompts: every two names and every thing."""
    return [
        {
            "template": "Then {A} and {B}",
            "prompt": f"Then {a} and {b} went to the {place}, and {b} gave a {thing} to",
            "choices": [b, a],
            "answerKey": 1,
            "abc_counterfactual": {"prompt": "Then A", "choices": [a, b], "answerKey": 0},
            "s2_io_flip_counterfactual": {
                "prompt": f"Then {a} and {b} went to the {place}, and {a} gave a {thing} to",
                "choices": [b, a],
                "answerKey": 0,
            },
        }
        for a in NAMES
        for b in NAMES
        if a != b
        for thing in THINGS
    ]


def total(a: int, b: int, c: int) -> dict[str, Any]:
    """A row with the sum of two numbers; its counterfactual has another second number."""
    return {
        "prompt": f"{a} and {b} is ",
        "label": str(a + b),
        "random_counterfactual": {"prompt": f"{a} and {c} is ", "label": a + c},
    }


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current folder, an empty cache, and no hub."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    mib_hub._load.cache_clear()
    yield tmp_path
    mib_hub._load.cache_clear()


def test_prompts_are_those_of_files_with_the_rows(here: Path, smollm2: Model) -> None:
    """Circuits are found on the one split and measured on the other."""
    write(here / IOI, train=ioi("store"), validation=ioi("park"), test=ioi("moon"))
    task = find_task(IOI)
    assert task.name == IOI
    assert task.summary == (
        "60 prompts to find on and 60 to evaluate on, from the splits train and validation of "
        "mib-bench/ioi (0 of 120 rows are left out)"
    )
    assert task.sizes == {"discover": 24, "check": 24, "evaluate": 60, "reference": 12}
    drawn = {part: list(map(str, task.sampler(Words(smollm2), 0, part))) for part in PARTS}
    files = {
        split: sorted(str(prompt) for _, prompt in read_task(here / IOI / f"{split}.jsonl").lines)
        for split in ("train", "validation")
    }
    assert sorted(drawn["evaluate"]) == files["validation"]
    assert sorted(drawn["discover"] + drawn["check"] + drawn["reference"]) == files["train"]


def test_how_rows_are_stored_does_not_matter(here: Path) -> None:
    folder = write(here / IOI, train=ioi("store"), validation=ioi("park"))
    before = find_task(IOI).digest
    for path in sorted(folder.iterdir()):
        rows = map(json.loads, path.read_text().splitlines())
        datasets.Dataset.from_list([*rows]).to_parquet(path.with_suffix(".parquet"))
        path.unlink()
    mib_hub._load.cache_clear()
    assert find_task(IOI).digest == before


def test_rows_that_no_model_can_use_are_left_out(here: Path) -> None:
    train = [total(1, b, b + 1) for b in range(1, 6)]
    missing = {**total(2, 2, 3), "random_counterfactual": None}
    same = {**total(2, 3, 4), "random_counterfactual": {"prompt": "3 and 2 is ", "label": 5}}
    validation = [total(3, 4, 5), train[0], total(3, 5, 6)]
    write(here / SUMS, train=[*train, missing, same, train[3]], validation=validation)
    task = find_task(SUMS)
    assert task.summary.startswith("5 prompts to find on and 2 to evaluate on")
    assert "(4 of 11 rows are left out)" in task.summary


def test_rows_that_a_tokenizer_cannot_take_are_left_out(here: Path, smollm2: Model) -> None:
    """Its tokens are single digits."""
    long = [total(10, b, b + 1) for b in range(1, 30)]
    short = [total(1, b, b + 1) for b in range(1, 7)]
    write(here / SUMS, train=[*short, *long], validation=[total(2, 4, 5), *long[:3]])
    task, words = find_task(SUMS), Words(smollm2)
    own = [prompt for part in PARTS for prompt in task.sampler(words, 0, part)]
    assert sorted(prompt.answers[0] for prompt in own) == ["2", "3", "4", "5", "6", "6", "7"]
    write(here / SUMS, train=long, validation=[total(11, 4, 15)])
    mib_hub._load.cache_clear()
    with pytest.raises(
        UnweaveError, match=r"no row of .* with smollm2-135m: .*; of the first, '\d\d' is"
    ):
        find_task(SUMS).prompts(smollm2)
    (prompt,) = find_task(SUMS, first_token=True).prompts(smollm2, part="evaluate")
    assert prompt.answers == ("15",)


def test_the_configuration_is_that_of_the_circuit_track(here: Path) -> None:
    card, about = here / COLOURS / "README.md", []
    for number in (4, 2):
        name = f"{number}_answer_choices"
        rows = [total(number, b, b + 1) for b in range(1, 7)]
        write(here / COLOURS / name, train=rows[:5], validation=rows[5:])
        about.append(f"- config_name: {name}\n  data_dir: {name}\n")
    card.write_text(f"---\nconfigs:\n{''.join(about)}---\n")
    assert [prompt.clean for prompt in mib_hub._load(COLOURS).validation] == ["4 and 6 is "]
    card.write_text(f"---\nconfigs:\n{about[1]}---\n")
    mib_hub._load.cache_clear()
    with pytest.raises(
        UnweaveError, match=r"cannot be loaded .*4_answer_choices.*give a \.jsonl file"
    ):
        find_task(COLOURS)


def test_what_was_loaded_once_is_there_without_the_hub(here: Path) -> None:
    """As the hub leaves it: the cache has a dataset under its name."""
    write(here / IOI, train=ioi("store"), validation=ioi("park"))
    before = find_task(IOI).digest
    shutil.rmtree(here / IOI)
    (here / "cache" / "ioi").rename(here / "cache" / "mib-bench___ioi")
    mib_hub._load.cache_clear()
    assert find_task(IOI).digest == before


def test_errors_say_what_to_do(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnweaveError, match="did you mean mib-bench/ioi"):
        find_task("mib-bench/iio")
    with pytest.raises(
        UnweaveError, match=r"hub cannot be reached: go online once, or give a \.jsonl"
    ):
        find_task(IOI)
    write(here / IOI, train=ioi("store"))
    with pytest.raises(UnweaveError, match=r"cannot be loaded \(ValueError: .*validation"):
        find_task(IOI)
    write(here / IOI, validation=[{**row, "answerKey": 0} for row in ioi("park")])
    with pytest.raises(UnweaveError, match="60 usable rows of 60 in train and 0 of 60 in validat"):
        find_task(IOI)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UnweaveError, match=r"not installed: pip install 'unweave\[mib\]'"):
        find_task(IOI)


def test_a_run_notices_other_rows(here: Path) -> None:
    """Also where the search's prompts are the same."""
    train, validation = wired_rows(40, 0), wired_rows(20, 1)
    write(here / IOI, train=train, validation=validation)
    model, how = load(WIRED), Specification(IOI, WIRED, method="eap", prompts=4, held_out=4)
    how = replace(how, ablation="counterfactual")
    found = discover(model, IOI, how, here / "run", explain=False)
    again = discover(model, IOI, how, here / "run", resume=True, explain=False)
    assert again.nodes == found.nodes
    before = fingerprint(model, find_task(IOI), 0)
    write(here / IOI, validation=validation[1:])
    mib_hub._load.cache_clear()
    after = fingerprint(model, find_task(IOI), 0)
    assert {name for name in before if before[name] != after[name]} == {"task"}
    with pytest.raises(UnweaveError, match="hash of task was"):
        discover(model, IOI, how, here / "run", resume=True, explain=False)


def test_commands_take_the_name(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(here / IOI, train=wired_rows(40, 0), validation=wired_rows(20, 1))
    few = ["--model", WIRED, "-n", "4", "--held-out", "4"]
    eap = ["--methods", "eap", "--out", "mib"]
    assert cli.main(["mib", "run", IOI, *few, *eap]) == 0
    assert cli.main(["mib", "pack", "mib", "--model-name", "gpt2"]) == 0
    assert Path("mib/submission/node/ioi_gpt2/importances.json").is_file()
    table = json.loads(Path("mib/mib.json").read_text())
    table["results"] += [{**result, "task": "ioi"} for result in table["results"]]
    Path("mib/mib.json").write_text(json.dumps(table))
    assert cli.main(["mib", "pack", "mib"]) == 2
    assert "mib-bench/ioi and ioi both have the name ioi" in capsys.readouterr().err
    how = ["--method", "eap", "--ablation", "counterfactual", "--no-explain"]
    assert cli.main(["discover", IOI, *few, *how]) == 0
    (run,) = Path("runs").iterdir()
    assert run.name.startswith(f"mib-bench_ioi-{WIRED}-seed0-")
    assert cli.main(["evaluate", str(run), "-n", "4"]) == 0
    assert cli.main(["report", str(run)]) == 0
    capsys.readouterr()
    assert cli.main(["tasks", "show", IOI, "--model", WIRED, "-n", "1"]) == 0
    assert "rows are left out" in capsys.readouterr().out.replace("\n", " ")
    assert cli.main(["tasks"]) == 0
    assert "mib-bench/arc_challenge" in capsys.readouterr().out
