"""Run folders: resumed after a death at any write, locked, refused when they are another run's."""

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from oracles.deaths import Deadly, Death, result
from oracles.rights import nobody
from oracles.task_files import rows, task_file
from safetensors import safe_open
from safetensors.torch import save_file

from unweave.errors import UnweaveError
from unweave.experiments import files
from unweave.experiments.discover import discover
from unweave.experiments.files import read_json, write_json, write_text
from unweave.experiments.locking import new_folder
from unweave.experiments.run_folder import read_run
from unweave.experiments.specification import Specification
from unweave.model.loading import load
from unweave.model.model import Model
from unweave.model.weights import tensors

TASK = "wired-induction"
METHODS = ("cdt", "eap+algorithm1", "acdc")
EXPLAINED = "acdc"  # one is enough: dying in an explanation is the same for all


@pytest.fixture(scope="module")
def wired() -> Model:
    return load(TASK)


def specification(method: str = "cdt", **changes: Any) -> Specification:
    usual = {"ablation": "counterfactual", "prompts": 4, "held_out": 4, "method": method}
    return Specification(TASK, TASK, **usual | changes)


@pytest.fixture(scope="module", params=METHODS)
def whole(request: pytest.FixtureRequest, wired: Model, tmp_path_factory: Any) -> tuple[str, Path]:
    """A run that was not interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    discover(wired, TASK, specification(request.param), folder, explain=request.param == EXPLAINED)
    return request.param, folder


@pytest.fixture(scope="module")
def finished(wired: Model, tmp_path_factory: Any) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    discover(wired, TASK, specification(), folder)
    return folder


def test_a_death_at_any_write_changes_nothing(
    whole: tuple[str, Path], wired: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, expected = whole
    write, at, deaths = files.write_whole, 0, 0
    while True:
        at += 1
        folder = tmp_path / f"{at}"
        writer = Deadly(at, after=at % 2 == 0)
        for module in ("files", "run_folder"):
            monkeypatch.setattr(f"unweave.experiments.{module}.write_whole", writer)
        try:
            discover(wired, TASK, specification(method), folder, explain=method == EXPLAINED)
            break
        except Death:
            deaths += 1
        for module in ("files", "run_folder"):
            monkeypatch.setattr(f"unweave.experiments.{module}.write_whole", write)
        again = {"resume": True, "explain": method == EXPLAINED}
        discover(wired, TASK, specification(method), folder, **again)
        assert result(folder) == result(expected), f"death at write {at}"
        shutil.rmtree(folder)
    assert deaths >= 6


def test_a_death_between_the_last_two_steps(wired: Model, finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    write_json(folder / "state.json", {"identity": 3})
    with pytest.raises(UnweaveError, match="is not finished: continue with --resume"):
        read_run(folder)
    discover(wired, TASK, specification(), folder, resume=True)
    assert result(folder) == result(finished)


def test_a_run_that_fails_leaves_nothing(wired: Model, tmp_path: Path) -> None:
    how = Specification("wired-inhibition", TASK, prompts=4, held_out=4)
    with pytest.raises(UnweaveError):
        discover(wired, "wired-inhibition", how, tmp_path / "new" / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_something_in_it_is_left_alone(wired: Model, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UnweaveError, match="is not empty"):
        discover(wired, TASK, specification(), tmp_path)
    with pytest.raises(UnweaveError, match="holds no run"):
        discover(wired, TASK, specification(), tmp_path, resume=True)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "seed was 0, is 1"),
        ({"bos": True}, "bos was None, is True"),
        ({"options": {"max_size": 3}}, "max_size was None, is 3"),
        ({"only_correct": True}, "only_correct was None, is True"),
        ({"ablation": "mean"}, "ablation was 'counterfactual', is 'mean'"),
    ],
)
def test_resuming_another_run_is_refused(
    wired: Model, finished: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnweaveError, match=message):
        discover(wired, TASK, specification(**changes), finished, resume=True)


def test_both_figures_of_a_file_with_templates(wired: Model, tmp_path: Path) -> None:
    file = task_file(tmp_path / "mine.jsonl", TASK, templates=4)
    how = Specification(file, TASK, method="eap", ablation="counterfactual")
    discover(wired, file, how, tmp_path / "run", explain=False)
    record = read_run(tmp_path / "run").record
    found = record["verdict"]["templates"]
    assert found.keys() == {"seen", "new"}
    assert all(one["prompts"] > 0 for one in found.values())
    assert sum(one["prompts"] for one in found.values()) == len(record["prompts"]["evaluate"])


@pytest.mark.parametrize("level", ["node", "edge"])
def test_a_pair_of_unequal_lengths_is_found_before_the_work(
    wired: Model, tmp_path: Path, level: str
) -> None:
    file, lines = tmp_path / "mine.jsonl", rows(TASK)
    refused: list[tuple[str, bool]] = []
    # Whatever part of the prompts the pair falls into; a mean does not need pairs.
    for number, row in enumerate(lines):
        short = {**row, "corrupted": row["corrupted"].rpartition(" ")[0]}
        file.write_text("\n".join(json.dumps(short if one is row else one) for one in lines))
        how, folder = Specification(str(file), TASK, level=level), tmp_path / f"{number}"
        try:
            discover(wired, str(file), how, folder, explain=False)
        except UnweaveError as error:
            refused.append((str(error), folder.exists()))
    assert 0 < len(refused) < len(lines)
    assert all("differ in length" in error for error, _ in refused)
    assert not any(left for _, left in refused), "a run that cannot be done leaves nothing"


def test_edits_of_task_file_and_weights_are_noticed(wired: Model, tmp_path: Path) -> None:
    file = task_file(tmp_path / "mine.jsonl", TASK)
    how = Specification(file, TASK, method="eap", ablation="counterfactual", prompts=4, held_out=4)
    discover(wired, file, how, tmp_path / "run")
    Path(file).write_text(Path(file).read_text() + "\n")
    with pytest.raises(UnweaveError, match="hash of task was"):
        discover(wired, file, how, tmp_path / "run", resume=True)
    other = load(TASK)
    next(t for t in tensors(other.network) if t.ndim == 2)[0, 0] += 1e-3
    task_file(tmp_path / "mine.jsonl", TASK)
    with pytest.raises(UnweaveError, match="hash of model was"):
        discover(other, file, how, tmp_path / "run", resume=True)


def test_an_edited_state_is_refused(
    wired: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Deadly(6, after=True)
    for module in ("files", "run_folder"):
        monkeypatch.setattr(f"unweave.experiments.{module}.write_whole", writer)
    with pytest.raises(Death):
        discover(wired, TASK, specification(), tmp_path)
    monkeypatch.undo()
    state = read_json(tmp_path / "state.json", "state")
    assert state["saved"]["search"]["steps"]
    state["saved"]["search"]["steps"][0]["size"] += 1
    write_json(tmp_path / "state.json", state)
    with pytest.raises(UnweaveError, match=r"state\.json was changed: delete"):
        discover(wired, TASK, specification(), tmp_path, resume=True)


def test_other_scores_are_not_used(
    wired: Model, whole: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, expected = whole
    explain = method == EXPLAINED
    writer = Deadly(5, after=True)
    for module in ("files", "run_folder"):
        monkeypatch.setattr(f"unweave.experiments.{module}.write_whole", writer)
    with pytest.raises(Death):
        discover(wired, TASK, specification(method), tmp_path, explain=explain)
    monkeypatch.undo()
    (tmp_path / "scores.safetensors").write_bytes(b"something else")
    discover(wired, TASK, specification(method), tmp_path, resume=True, explain=explain)
    assert result(tmp_path) == result(expected)


_HOLD = """
import sys
from pathlib import Path
from unweave.experiments.locking import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Path]:
    """A folder that another process uses."""
    folder, pipe = tmp_path / "run", subprocess.PIPE
    command = [sys.executable, "-c", _HOLD, str(folder)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        yield folder
        other.communicate("", timeout=60)
    assert other.returncode == 0
    assert not folder.exists(), "an empty folder is removed"


def test_a_folder_in_use_is_locked(wired: Model, held: Path) -> None:
    for resume in (False, True):
        with pytest.raises(UnweaveError, match="another process uses"):
            discover(wired, TASK, specification(), held, resume=resume)


def test_a_dead_process_holds_no_lock(wired: Model, tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("")
    (tmp_path / ".state.json.123.part").write_text("{")
    discover(wired, TASK, specification("eap"), tmp_path)
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_new_folders_are_named_after_the_run_and_exclusive(tmp_path: Path) -> None:
    first, second = (new_folder("ioi", "org/model", 3, tmp_path) for _ in range(2))
    assert first != second
    assert first.name.startswith("ioi-model-seed3-")
    long = new_folder("x" * 300 + "/../[/red]", "m", 0, tmp_path)
    assert long.parent == tmp_path


def test_a_full_disk_keeps_the_run(wired: Model, tmp_path: Path) -> None:
    """A limit of file size stands for a full disk: writing fails in the middle of a file."""
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, usual[1]))
    try:
        with pytest.raises(UnweaveError, match=r"cannot write .*: .*; make room"):
            discover(wired, TASK, specification(), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert not list(tmp_path.glob(".*.part"))
    assert (tmp_path / "state.json").exists()
    discover(wired, TASK, specification(), tmp_path, resume=True)


def test_a_read_only_folder(wired: Model, finished: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    for parent in (tmp_path.parent, tmp_path.parent.parent):
        parent.chmod(0o755)  # pytest's own folders are closed to others
    with nobody(), pytest.raises(UnweaveError, match="Permission denied; choose another folder"):
        discover(wired, TASK, specification(), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_other_users_may_read_all_of_a_run_or_nothing(finished: Path) -> None:
    """As the user's umask says, for tensors too."""
    rights = {path.name: path.stat().st_mode & 0o777 for path in finished.iterdir()}
    (finished.parent / "new").touch()
    assert {*rights.values()} == {(finished.parent / "new").stat().st_mode & 0o777}, rights


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """A device is the same case: root would lose /dev/null."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_text(pipe, "page")
        assert os.read(reader, 100) == b"page"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"a": [float("nan"), float("inf")], "b": (1, 2.5)})
    text = (tmp_path / "x.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {"a": [None, None], "b": [1, 2.5]}


def test_a_name_of_odd_bytes_is_read_back(tmp_path: Path) -> None:
    record = {"task": os.fsdecode(b"\xff.jsonl"), "sign": "−"}
    write_json(tmp_path / "x.json", record)
    assert read_json(tmp_path / "x.json", "a record") == record


def test_scores_that_do_not_fit_their_names(finished: Path, tmp_path: Path) -> None:
    with safe_open(finished / "scores.safetensors", "pt") as file:
        metadata, values = file.metadata(), file.get_tensor("values")
        examples = file.get_tensor("examples")
    for changed in ((values[:-1], examples), (values, examples[:-1]), (values, examples[0])):
        shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
        named = dict(zip(("values", "examples"), changed, strict=True))
        save_file(
            {n: t.contiguous() for n, t in named.items()}, tmp_path / "scores.safetensors", metadata
        )
        with pytest.raises(UnweaveError, match=r"scores\.safetensors cannot be read"):
            read_run(tmp_path)
    names = json.loads(metadata["names"])
    for change in ({"sources": ["x"] * len(values)}, {"order": ["a0.h0"]}, {"sources": 3}):
        save_file(
            {"values": values, "examples": examples},
            tmp_path / "scores.safetensors",
            {"names": json.dumps({**names, **change})},
        )
        with pytest.raises(UnweaveError, match=r"scores\.safetensors cannot be read"):
            read_run(tmp_path)
