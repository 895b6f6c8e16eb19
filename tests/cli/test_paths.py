"""`unweave paths`: what it prints and writes."""

import json

import pytest

from unweave import cli
from unweave.experiments.discover import discover
from unweave.experiments.specification import Specification
from unweave.model.loading import load

NAME = "wired-relay"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "one"
    how = Specification(NAME, NAME, method="eap", prompts=8, held_out=8)
    discover(load(NAME), NAME, how, folder, explain=False)
    return folder


def test_paths_prints_a_table_and_writes_its_record(run, capsys):
    assert cli.main(["paths", str(run), "-n", "8"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    record = json.loads((run / "paths.json").read_text())
    assert record["prompts"] == 8
    for one in record["paths"]:
        assert f"{one['share']:+.1%}" in output
        assert f"{one['measured']:+.1%}" in output
    assert f"Left over: {record['left']:+.1%}" in output
    shares = [one["share"] for one in record["paths"]]
    assert 1 - sum(shares) == pytest.approx(record["left"], abs=1e-6)
    assert "a0.h1&lt;v&gt;" not in (run / "report.html").read_text()
    assert "a0.h1\\u003cv\\u003e" in (run / "report.html").read_text()


def test_fewer_paths_leave_more_over(run, capsys):
    assert cli.main(["paths", str(run), "-n", "8", "--count", "1", "--json"]) == 0
    (one,), left = (record := json.loads(capsys.readouterr().out))["paths"], record["left"]
    assert left == pytest.approx(1 - one["share"], abs=1e-6)
    assert record["left_after_all"] == pytest.approx(0, abs=0.01)
