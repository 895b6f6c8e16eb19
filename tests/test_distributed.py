"""Several processes on one job: every cell is somebody's, and the result is one process's."""

import json
import os
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path

import pytest
import torch

from unweave import cli, distributed
from unweave.circuits import Scores
from unweave.distributed import Ranks, alone, joined, on_first, ranks, sharded
from unweave.errors import UnweaveError
from unweave.experiments.discover import discover
from unweave.experiments.specification import Specification
from unweave.model.loading import load

DISCOVER = ["discover", "wired-induction", "-n", "6", "--held-out", "6"]
DISCOVER += ["--ablation", "counterfactual", "-q"]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1), (3, 4), (270, 12), (2, 64), (7, 7)])
def test_every_cell_is_one_process_s(count: int, shape: tuple[int, int]) -> None:
    times = torch.zeros(shape, dtype=torch.long)
    sizes = []
    for rank in range(count):
        share = Ranks(rank, count).share(*shape)
        if share is not None:
            times[share] += 1
            sizes.append(times[share].numel())
    assert times.eq(1).all()
    # No process does more than an even share, rounded up along each side.
    assert max(sizes) * count <= 2 * times.numel() + count * max(shape)


def test_sources_and_prompts_are_shared_out_evenly() -> None:
    shares = [Ranks(rank, 8).share(270, 12) for rank in range(8)]
    sizes = [len(range(*s[0].indices(270))) * len(range(*s[1].indices(12))) for s in shares if s]
    assert len(sizes) == 8
    assert max(sizes) <= 408  # 405 would be even


def test_one_process_runs_everything_as_it_is() -> None:
    seen = []

    def run(rows: slice, columns: slice) -> torch.Tensor:
        seen.append((rows, columns))
        return torch.ones(2, 3)

    assert ranks() == Ranks(0, 1)
    assert sharded(2, 3, run, torch.empty(0), ()).sum() == 6
    assert seen == [(slice(None), slice(None))]
    with joined() as found, alone():
        assert found.count == 1
    assert on_first(lambda: {"a": (1,)}) == {"a": (1,)}


def test_the_processes_share_results_and_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes played by one: the second agrees, and adds nothing to the first's share."""

    def both(x: torch.Tensor) -> None:
        if x.dtype == torch.int64:
            x[1] = x[0]

    monkeypatch.setattr(distributed.dist, "all_reduce", both)
    monkeypatch.setattr(distributed.dist, "broadcast", lambda x, source: None)
    token = distributed._ranks.set(Ranks(0, 2))
    try:
        table = sharded(4, 1, lambda r, c: torch.ones(2, 1), torch.empty(0), ["a"])
        assert table.flatten().tolist() == [1, 0, 1, 0]
        assert on_first(lambda: {"a": (1,)}) == {"a": [1]}
        expanded = torch.ones(3, 1).expand(3, 4)  # three numbers in memory
        assert distributed.from_first(expanded).is_contiguous()
        with pytest.raises(UnweaveError, match="no such folder"):
            on_first(_fail)
    finally:
        distributed._ranks.reset(token)


def _fail() -> None:
    raise UnweaveError("no such folder")


def test_what_was_shared_outlives_the_processes_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else gloo's threads wait for Python's lock, and it for them: torch 2.6 hung there."""
    alive: list[bool] = []
    seen: list[weakref.ref[torch.Tensor]] = []
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(distributed, "_connect", lambda: None)
    fakes = {
        "get_rank": lambda: 0,
        "get_world_size": lambda: 2,
        "all_reduce": lambda x: seen.append(weakref.ref(x)),
        "destroy_process_group": lambda: alive.extend(one() is not None for one in seen),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(distributed.dist, name, fake)
    with joined():
        for number in range(2):
            distributed.summed(torch.full((1,), float(number)))
    assert alive == [True, True]
    assert [one() for one in seen] == [None, None]


def test_processes_that_disagree_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(x: torch.Tensor) -> None:
        x[1] = 1 + x[0]

    monkeypatch.setattr(distributed.dist, "all_reduce", other)
    token = distributed._ranks.set(Ranks(0, 2))
    try:
        with pytest.raises(UnweaveError, match="disagree"):
            distributed.agree(["a0.h0"])
    finally:
        distributed._ranks.reset(token)


def test_a_process_that_cannot_be_reached_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(x: torch.Tensor) -> None:
        raise RuntimeError("Connection closed by peer [127.0.0.1]:1\nstack")

    monkeypatch.setattr(distributed.dist, "all_reduce", broken)
    token = distributed._ranks.set(Ranks(0, 2))
    try:
        with pytest.raises(UnweaveError, match=r"Connection closed.*--resume"):
            distributed.summed(torch.zeros(1))
    finally:
        distributed._ranks.reset(token)


def torchrun(*args: str, count: int = 2) -> list[str]:
    how = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count)]
    return [*how, "-m", "unweave", *args]


def test_torchrun_finds_what_one_process_finds(tmp_path: Path) -> None:
    """Scores, pairs, circuit and figures; one process prints."""
    command = [*DISCOVER, "--method", "cdt", "-o", "pairs=true", "--out"]
    assert cli.main([*command, str(tmp_path / "one")]) == 0
    done = subprocess.run(torchrun(*command, str(tmp_path / "two")), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Next: open") == 1
    one, two = (Scores.load(tmp_path / name / "scores.safetensors") for name in ("one", "two"))
    assert one.sources == two.sources
    assert (one.values - two.values).abs().max() <= 1e-6 * one.values.abs().max()
    for name, matrix in one.pairs.items():
        assert (matrix - two.pairs[name]).abs().max() <= 1e-5 * matrix.abs().max()
    found = [json.loads((tmp_path / n / "circuit.json").read_text()) for n in ("one", "two")]
    assert [[node["site"] for node in one["nodes"]] for one in found] == [
        [node["site"] for node in found[0]["nodes"]]
    ] * 2
    assert found[0]["faithfulness"] == pytest.approx(found[1]["faithfulness"], rel=1e-5)


def test_a_run_goes_on_after_a_process_was_killed(tmp_path: Path) -> None:
    """The second process is killed once the scores are there; one line says what to do."""
    folder = tmp_path / "run"
    command = torchrun(*DISCOVER, "--out", str(folder), "--resume")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 300
    while not (folder / "state.json").exists() and time.monotonic() < until:
        time.sleep(0.01)
    os.kill(_of_rank_1(process.pid), signal.SIGKILL)
    _, said = process.communicate(timeout=300)
    assert process.returncode != 0
    assert said.count("error: ") == 1
    assert "give the same command again" in said
    assert not (folder / "run.json").exists()
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert cli.main([*DISCOVER, "--out", str(tmp_path / "whole")]) == 0
    found = [json.loads((p / "circuit.json").read_text()) for p in (folder, tmp_path / "whole")]
    names = [[node["site"] for node in one["nodes"]] for one in found]
    assert names[0] == names[1]


def test_torchrun_does_not_end_a_process_before_it_has_said_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (("launched", True), ("_connect", None)):
        monkeypatch.setattr(distributed, name, lambda value=value: value)
    monkeypatch.setattr(distributed, "_already_warned", lambda text: False)
    monkeypatch.setattr(distributed.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(distributed.dist, "get_world_size", lambda: 2)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(UnweaveError, match="another process"), distributed.joined():
            raise UnweaveError("another process ended")
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def _of_rank_1(parent: int) -> int:
    """The process that torchrun gave the rank 1."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    for child in map(int, children):
        if b"\0RANK=1\0" in b"\0" + Path(f"/proc/{child}/environ").read_bytes():
            return child
    raise AssertionError(f"torchrun has no rank 1 among {children}")


def test_a_mistake_that_all_processes_meet_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store = distributed.dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    monkeypatch.setattr(distributed.dist.distributed_c10d, "_get_default_store", lambda: store)
    assert not distributed._already_warned("unknown task 'x'")
    assert distributed._already_warned("unknown task 'x'")
    # What gloo says differs from process to process.
    assert not distributed._already_warned("another process ended (peer 1)")
    assert distributed._already_warned("another process ended (peer 2)")


def test_four_processes_find_what_one_finds(tmp_path: Path) -> None:
    command = [*DISCOVER, "--method", "patching", "--no-explain", "--out"]
    assert cli.main([*command, str(tmp_path / "one")]) == 0
    four = torchrun(*command, str(tmp_path / "four"), count=4)
    done = subprocess.run(four, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    one, two = (Scores.load(tmp_path / name / "scores.safetensors") for name in ("one", "four"))
    assert one.sources == two.sources
    assert (one.values - two.values).abs().max() <= 1e-6 * one.values.abs().max()
    found = [json.loads((tmp_path / n / "circuit.json").read_text()) for n in ("one", "four")]
    nodes = [[node["site"] for node in one["nodes"]] for one in found]
    assert nodes[0] == nodes[1]


def test_torchrun_compares_as_one_process_does(tmp_path: Path) -> None:
    command = ["compare", "wired-induction", "--methods", "eap,patching", "--draws", "1"]
    command += ["-n", "4", "--held-out", "4", "--json", "-q", "--out"]
    assert cli.main([*command, str(tmp_path / "one")]) == 0
    done = subprocess.run(torchrun(*command, str(tmp_path / "two")), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    json.loads(done.stdout)  # one process prints
    rows = []
    for name in ("one", "two"):
        record = json.loads((tmp_path / name / "compare.json").read_text())
        rows.append({row["method"]: row for row in record["rows"]})
    assert rows[0].keys() == rows[1].keys() == {"eap", "patching"}
    for method, own in rows[0].items():
        other = rows[1][method]
        assert own["circuit"] == other["circuit"]
        assert own["faithfulness"] == pytest.approx(other["faithfulness"], rel=1e-5)


def test_a_short_command_is_the_first_process_s(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        cli.main(["methods"])
    assert ended.value.code == 0
    monkeypatch.setenv("RANK", "0")
    assert cli.main(["methods"]) == 0
    assert "the default" in capsys.readouterr().out


def test_edges_are_found_in_one_process() -> None:
    model = load("wired-induction")
    how = Specification("wired-induction", "wired-induction", level="edge")
    token = distributed._ranks.set(Ranks(0, 2))
    try:
        with pytest.raises(UnweaveError, match="without torchrun"):
            discover(model, "wired-induction", how)
    finally:
        distributed._ranks.reset(token)
