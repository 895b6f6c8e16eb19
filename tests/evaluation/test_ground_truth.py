"""Models whose circuit we built: they do what they should, and methods find what is there."""

from dataclasses import replace

import pytest
import torch
from oracles.closeness import assert_close

from unweave.ablation import activations
from unweave.ablations.kind import ablations
from unweave.behaviours.accuracy import task_accuracy
from unweave.behaviours.file import find_task
from unweave.behaviours.synthetic.tracr import WIRINGS
from unweave.behaviours.task import synthetic_tasks
from unweave.errors import UnweaveError
from unweave.evaluation.roc import roc
from unweave.experiments.methods import find_method
from unweave.experiments.specification import Experiment, Specification
from unweave.model.loading import load
from unweave.model.model import Model
from unweave.model.synthetic import synthetic_models, tracr_programs
from unweave.model.synthetic.tracr_compile import LETTERS, tracr
from unweave.model.synthetic.tracr_network import network
from unweave.scores.score import scores as registered
from unweave.search.search import searches
from unweave.testing.task import check_task

needs_tracr = pytest.mark.skipif(
    not tracr_programs.available(), reason='tracr is not installed: pip install "unweave[tracr]"'
)
NAMES = [
    pytest.param(name, marks=needs_tracr) if name.startswith("tracr:") else name
    for name in synthetic_tasks
]


@pytest.fixture(scope="module", params=NAMES)
def model(request) -> Model:
    return load(request.param)


@pytest.fixture(scope="module")
def experiments(model) -> dict[str, Experiment]:
    specifications = {
        name: Specification(model.name, model.name, ablation=name, prompts=24, mlps=True)
        for name in ablations
    }
    return {name: Experiment.set_up(one, model) for name, one in specifications.items()}


def test_every_synthetic_model_has_a_task():
    assert set(synthetic_models) == set(synthetic_tasks)


def test_the_task_keeps_its_contract_and_the_model_does_it(model):
    task = find_task(model.name)
    check_task(task, model)
    assert task_accuracy(model, task.batch(model, 32)).correct == 1.0


@pytest.mark.parametrize("ablation", list(ablations))
def test_the_circuit_alone_does_the_task(experiments, ablation):
    problem, known = experiments[ablation].discovery, experiments[ablation].known()["published"]
    assert float(problem.faithfulness([known])[0]) == pytest.approx(1, abs=0.02)


def test_what_never_changes_is_no_part_of_the_circuit_under_mean(experiments):
    """A node of the zero circuit is missing under mean exactly when its output is constant."""
    problem, model = experiments["mean"].discovery, experiments["mean"].model
    batch, circuit = problem.batch, experiments["mean"].task.known[model.name]
    runs = [activations(model, side, problem.points) for side in (batch.clean, batch.corrupted)]
    mask = batch.clean.mask.repeat(2, 1)[..., None]
    assert set(circuit.under("zero")) >= set(circuit.under("mean")) != set()
    for node in circuit.under("zero"):
        # Clean and corrupted prompts, one below the other: the mean is over corrupted ones.
        x = torch.cat([run[node.point] for run in runs])
        x = (x if node.unit is None else x[:, :, node.unit]) * mask
        groups = [x[batch.groups.repeat(2) == group] for group in batch.groups.unique()]
        varies = any(not torch.allclose(g, g[:1].expand_as(g), atol=1e-4) for g in groups)
        if not model.name.startswith("tracr:"):  # there, an MLP serves two programs
            assert varies == (node in circuit.under("mean")), node
        assert varies or node not in circuit.under("mean"), node


@pytest.mark.parametrize("ablation", list(ablations))
@pytest.mark.parametrize("name", ["cdt", "patching"])
def test_cdt_and_exact_patching_rank_the_circuit_first(experiments, ablation, name):
    problem, method = experiments[ablation].discovery, find_method(name)
    known = experiments[ablation].known()["published"]
    scores = registered[method.score].run(problem, method.filled_score())
    assert roc(scores, known).auc == 1.0
    found = searches[method.search].run(problem, scores, method.filled_search())
    assert roc(replace(scores, order=found.ranking), known).auc == 1.0


@needs_tracr
@pytest.mark.parametrize("name", tracr_programs.PROGRAMS)
def test_compiled_networks_are_tracrs_own(name):
    """Our forward pass against tracr's craft model, direction by direction, at every position."""
    bases, program = tracr("craft.bases"), tracr_programs.compiled(name)
    for block in program.craft.blocks:
        if hasattr(block, "heads"):
            for head in block.heads():
                head.causal = True
    # Exactness in float64: attention scores of a hundred times a step round in float32.
    model = Model(name, network(program).to(torch.float64), "synthetic")
    generator = torch.Generator().manual_seed(0)
    space = program.craft.residual_space
    index = [program.directions.index(direction) for direction in space.basis]
    for length in (1, 5, 8):
        rows = torch.randint(1, len(LETTERS) + 1, (4, length), generator=generator)
        tokens = torch.cat((torch.zeros(4, 1, dtype=torch.long), rows), 1)
        ours = model.logits(tokens)
        for row, logits in zip(tokens, ours, strict=True):
            x = (program.tokens[row] + program.positions[: len(row)])[:, index].double().numpy()
            out = program.craft.apply(bases.VectorInBasis(space.basis, x))
            theirs = torch.tensor(out.magnitudes) @ program.output[:, index].T.double()
            assert_close(logits, theirs, 1e-6)


@needs_tracr
@pytest.mark.parametrize("name", tracr_programs.PROGRAMS)
def test_written_circuits_are_those_of_the_weights(name):
    assert synthetic_models[f"tracr:{name}"]().wiring == WIRINGS[name]


def test_without_tracr_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(tracr_programs, "available", lambda: False)
    tracr_programs.compiled.cache_clear()
    with pytest.raises(UnweaveError, match=r"pip install \"unweave\[tracr\]\""):
        load("tracr:reverse")


def test_a_misspelt_name_is_met_with_the_right_one():
    with pytest.raises(UnweaveError, match="wired-induction"):
        load("wired-inducton")
