"""`evaluate`: the whole record, on a model whose circuit is known."""

import json

import pytest

from unweave.errors import UnweaveError
from unweave.evaluation.api import EVALUATION_PARTS, evaluate
from unweave.experiments.files import plain, read_json, write_json
from unweave.scores.score import scores as registered


@pytest.fixture(scope="module")
def scores(experiment):
    return registered["patching"].run(experiment.discovery)


@pytest.fixture(scope="module")
def evaluation(experiment, problem, scores, circuit):
    others = {name: experiment.under(problem, name).ablation for name in ("mean", "zero")}
    known = experiment.known()
    return evaluate(problem, scores, circuit, ablations=others, known=known, draws=10)


def test_everything_about_the_wired_circuit(evaluation):
    assert evaluation.faithfulness["mean"].value == pytest.approx(1, abs=0.02)
    assert evaluation.faithfulness["zero"].value < 0.5  # without the head that finds positions
    assert set(evaluation.curves) == {"mean", "zero"}
    assert evaluation.known["published"] == pytest.approx(1, abs=0.02)
    assert evaluation.roc["published"].auc == 1.0
    assert evaluation.random_circuits.shares[0].farther == 1.0
    assert len(evaluation.random_circuits.shares) == 10
    assert evaluation.completeness.worst < 0.02
    assert evaluation.stability.overlap > 0.9


def test_the_record_is_json(evaluation):
    record = json.loads(json.dumps(plain(evaluation.to_json()), allow_nan=False))
    assert record["schema_version"] == 2
    assert record["size"] == 2
    assert {"curve_gap", "curve_area", "k80", "k95"} <= set(record["curves"]["mean"])
    assert record["random_circuits"]["own"]["draws"] == 10


def test_without_a_circuit_the_smallest_faithful_prefix(problem, scores):
    found = evaluate(problem, scores, parts=())
    assert set(found.circuit) == {"a1.h2", "a2.h0"}
    assert found.random_circuits is None
    assert evaluate(problem, scores, size=5, parts=()).circuit == tuple(scores.ranking()[:5])


def test_a_list_of_nodes_will_do(problem):
    found = evaluate(problem, ["a2.h0", "1.2"], parts=("curve",))
    assert found.curves["mean"].first(0.95) == 2
    assert found.stability is None


def test_bad_input(problem):
    with pytest.raises(UnweaveError, match="did you mean curve"):
        evaluate(problem, ["a2.h0"], parts=("curves",))  # type: ignore[arg-type]
    with pytest.raises(UnweaveError, match=r"a7\.h0 is not a node"):
        evaluate(problem, ["a7.h0"])
    with pytest.raises(UnweaveError, match="named twice"):
        evaluate(problem, ["a2.h0", "2.0"])
    assert set(EVALUATION_PARTS) >= {"random_circuits", "roc"}


def test_files_are_written_whole(tmp_path):
    path = tmp_path / "deep" / "a.json"
    write_json(path, {"x": float("nan"), "y": (1, 2)})
    assert read_json(path, "a record") == {"x": None, "y": [1, 2]}
    with pytest.raises(TypeError):
        write_json(path, {"x": object()})
    assert [p.name for p in path.parent.iterdir()] == ["a.json"]


@pytest.mark.parametrize("text", ["{", "[1]", "\xff"])
def test_broken_files_are_named(tmp_path, text):
    path = tmp_path / "a.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UnweaveError, match=r"a\.json.*expected a record"):
        read_json(path, "a record")
