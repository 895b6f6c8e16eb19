"""`compare` on an executor: the same results, and a worker that dies loses one of them."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from unweave import cli
from unweave.errors import UnweaveError
from unweave.experiments.compare import Comparison, Loader, compare
from unweave.experiments.executors import TRIES, LocalProcesses, find_executor, outcomes
from unweave.experiments.methods import find_method
from unweave.experiments.specification import Specification

NAME = "wired-induction"
PLAN = Comparison(
    (NAME,), Specification(NAME, NAME, prompts=6, held_out=6), (find_method("eap"),), draws=2
)
TIMES = ("seconds",)


def results(folder: Path) -> dict[str, Any]:
    """Every finished result, without how long it took."""
    found = {path.name: json.loads(path.read_text()) for path in folder.glob("*--*.json")}
    return {n: {k: v for k, v in result.items() if k not in TIMES} for n, result in found.items()}


class Dying:
    """An executor whose workers die the first few times, as concurrent.futures tells it."""

    def __init__(self, deaths: int) -> None:
        self.deaths, self.calls = deaths, 0

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        self.calls += 1
        future: Future[Any] = Future()
        if self.calls <= self.deaths:
            future.set_exception(BrokenExecutor("a worker was killed"))
            return future
        try:
            future.set_result(fn(*args))
        except UnweaveError as error:
            future.set_exception(error)
        return future


def test_a_job_whose_worker_died_is_submitted_again() -> None:
    said: list[str] = []
    pool = Dying(2)
    assert dict(outcomes(pool, {"a": (abs, (-1,)), "b": (abs, (-2,))}, said.append)) == {
        "a": 1,
        "b": 2,
    }
    assert pool.calls == 4
    assert len(said) == 2
    assert "a worker was killed" in said[0]


def test_a_job_whose_workers_always_die_is_given_up() -> None:
    pool = Dying(99)
    ((_, found),) = outcomes(pool, {"a": (abs, (-1,))})
    assert isinstance(found, UnweaveError)
    assert pool.calls == TRIES


def test_an_error_of_the_user_is_not_tried_again() -> None:
    def fail() -> None:
        raise UnweaveError("no such prompt")

    pool = Dying(0)
    ((_, found),) = outcomes(pool, {"a": (fail, ())})
    assert str(found) == "no such prompt"
    assert pool.calls == 1


def test_an_executor_that_is_shut_down_says_how_to_go_on() -> None:
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    with pytest.raises(UnweaveError, match="the same command continues"):
        list(outcomes(pool, {"a": (abs, (-1,))}))


def test_any_executor_gives_the_results_of_one_process(tmp_path: Path) -> None:
    here = compare(PLAN, tmp_path / "here", Loader())
    with ThreadPoolExecutor(2) as pool:
        there = compare(PLAN, tmp_path / "there", Loader(), executor=pool)
    assert results(tmp_path / "there") == results(tmp_path / "here")
    assert len(results(tmp_path / "there")) == 2
    for figure in ("faithfulness", "size", "k95"):
        assert there["rows"][0][figure] == here["rows"][0][figure]
    said: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        compare(PLAN, tmp_path / "there", Loader(), said.append, pool)
    assert [line.rpartition(": ")[2] for line in said] == ["already there"] * 2


def test_a_killed_worker_loses_one_result_which_is_computed_again(tmp_path: Path) -> None:
    """With real processes: the only one is killed as soon as it is given the first result."""
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if len(said) == 1:
            (child,) = multiprocessing.active_children()
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)

    with LocalProcesses(1) as pool:
        record = compare(PLAN, tmp_path / "killed", Loader(), say, pool)
    assert sum("its worker ended" in line for line in said) <= 1
    assert "error" not in record["rows"][0]
    compare(PLAN, tmp_path / "whole", Loader())
    assert results(tmp_path / "killed").keys() == results(tmp_path / "whole").keys()


@pytest.mark.parametrize("text", ["local", "local:0", "local:x", "threads:2", "slurm:gpu"])
def test_another_name_is_an_error(text: str, tmp_path: Path) -> None:
    if text.startswith("slurm"):
        pytest.importorskip("submitit")
    with pytest.raises(UnweaveError, match="expected"), find_executor(text, tmp_path):
        pass


@pytest.mark.parametrize(("name", "module"), [("slurm", "submitit"), ("ray", "ray")])
def test_a_package_that_is_missing_is_named(
    name: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UnweaveError, match=rf"unweave\[{name}\]"), find_executor(name, tmp_path):
        pass


@pytest.mark.parametrize("executor", ["slurm:cluster=debug", "ray"])
def test_submitit_and_ray_in_their_local_modes(executor: str, tmp_path: Path) -> None:
    """In a process of its own: both change what signals and the environment mean."""
    pytest.importorskip("submitit" if executor.startswith("slurm") else "ray")
    command = [sys.executable, "-m", "unweave", "compare", NAME, "--methods", "eap", "-q"]
    command += ["-n", "6", "--held-out", "6", "--draws", "2", "--out", str(tmp_path / "there")]
    done = subprocess.run([*command, "--executor", executor], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    compare(PLAN, tmp_path / "here", Loader())
    there, here = results(tmp_path / "there"), results(tmp_path / "here")
    assert there.keys() == here.keys()
    name = f"{NAME}--eap--seed0.json"
    assert there[name]["circuit"] == here[name]["circuit"]


def test_the_command_line_takes_an_executor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["-n", "6", "--held-out", "6", "--methods", "eap", "--out", str(tmp_path / "results")]
    assert cli.main(["compare", NAME, *few, "--executor", "local:x"]) == 2
    assert "local:4" in capsys.readouterr().err
