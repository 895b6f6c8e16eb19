"""docs/method.md §12: what no rule set, architecture, shape, chunk or padding may change.

Families are drawn from every tiny variant that is registered; a rule set that cannot satisfy an
invariant is left out where the test says why.
"""

import functools
import re
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import fields, is_dataclass

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracles.patched import patched
from oracles.scenes import RULES, WITH_METRIC, Scene, scenes
from oracles.tiny import (
    FAMILIES,
    all_sites,
    outputs_of,
    side_of,
    tiny_inputs,
    tiny_model,
    tiny_readout,
    trimmed,
)
from torch import Tensor

from unweave.ablation import Ablation, activations, counterfactual
from unweave.batch import Batch
from unweave.circuits import Scores
from unweave.decomposition import algebra, engine, readers
from unweave.decomposition.api import Decomposition, decompose, relevance
from unweave.decomposition.memory import memory_budget
from unweave.errors import UnweaveError
from unweave.metrics import LOGIT_DIFFERENCE, MARGIN, PROBABILITY_DIFFERENCE
from unweave.model.program import Inputs
from unweave.model.weights import Activation, Linear, Mlp, Network, Norm
from unweave.sites import Point, Site, parse

pytestmark = pytest.mark.filterwarnings("ignore:target .* lies upstream")
EXACT = 1e-12
# Between runs of other shapes: rounding, times the depth of the model.
SAME = 1e-10
LOGITS = Point("logits")
METRICS = st.sampled_from([LOGIT_DIFFERENCE, MARGIN, PROBABILITY_DIFFERENCE])


def names_of(scene: Scene) -> list[str]:
    return [*map(str, all_sites(scene.model)), "logits"]


def run(scene: Scene, inputs: Inputs | None = None, **options) -> Decomposition:
    inputs = scene.inputs if inputs is None else inputs
    options = {"targets": names_of(scene), "rules": scene.rules} | options
    return decompose(scene.model, inputs, scene.sources, **options)


def score(scene: Scene, metric=LOGIT_DIFFERENCE, **options) -> Scores:
    readout = tiny_readout(scene.model, scene.inputs, metric)
    options = {"rules": scene.rules, "pairs": ()} | options
    return relevance(scene.model, scene.inputs, scene.sources, readout, **options)


def size(x: Tensor) -> float:
    return max(1.0, float(x.abs().max()))


SMALLEST = re.compile(r"results take (\d+[KM]B), the smallest possible budget")


def smallest_budget(call: Callable[..., object]) -> int:
    """What the error of an impossible budget names, in bytes."""
    with pytest.raises(UnweaveError, match=SMALLEST) as caught:
        call(memory=1)
    found = SMALLEST.search(str(caught.value))
    assert found is not None
    return memory_budget(found[1], torch.device("cpu"))


def assert_same(a: Decomposition, b: Decomposition) -> None:
    """Both decompositions are equal at real tokens."""
    assert list(a.rel) == list(b.rel)
    for name in a.rel:
        mask, bound = a.mask[name], SAME * size(a.total[name])
        assert ((a.total[name] - b.total[name])[mask].abs() < bound).all(), name
        assert ((a.rel[name] - b.rel[name])[:, mask].abs() < bound).all(), name


def assert_same_scores(a: Scores, b: Scores) -> None:
    assert a.sources == b.sources
    assert (a.examples - b.examples).abs().max() < SAME * size(a.examples)
    for measure in a.pairs:
        x, y = a.pairs[measure], b.pairs[measure]
        assert (x - y).abs().max() < SAME * size(x), measure


# --- β + γ = T ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_totals_are_the_plain_run_in_every_family(name):
    model, inputs = tiny_model(name), tiny_inputs(name)
    sites = all_sites(model)
    names = [*map(str, sites), "logits"]
    rules = RULES[FAMILIES.index(name) % len(RULES)]
    d = decompose(model, inputs, [["a0.h0"], ["m1@0"]], names, rules=rules)
    plain = activations(model, inputs, {site.point for site in sites} | {LOGITS})
    assert d.completeness < EXACT
    for target in names:
        site = parse(target)
        whole = plain[site.point]
        whole = whole if site.unit is None else whole[:, :, site.unit]
        assert (d.total[target] - whole).abs().max() < EXACT * size(whole), target
        assert torch.isfinite(d.rel[target]).all()
        sum_of_parts = d.rel[target] + d.rest(target)
        assert (sum_of_parts - whole).abs().max() < EXACT * size(whole), target


@given(scenes())
def test_parts_sum_to_the_plain_run(scene):
    d = run(scene)
    assert d.completeness < EXACT
    points = {parse(name).point for name in d.rel}
    plain = activations(scene.model, scene.inputs, points)
    for name, rel in d.rel.items():
        site, mask = parse(name), d.mask[name]
        whole = plain[site.point]
        whole = whole if site.unit is None else whole[:, :, site.unit]
        assert rel.shape == (len(scene.sources), *whole.shape)
        bound = EXACT * size(whole[mask])
        assert ((rel + d.rest(name) - whole)[:, mask].abs() < bound).all(), name
        assert torch.isfinite(rel).all()


@pytest.mark.parametrize("target", ["logits", "a1.h0"])
def test_incomplete_totals_are_an_error(monkeypatch, target):
    """The check at run time: what relevance is split from is not what the model computes."""
    model, inputs = tiny_model("gpt2"), tiny_inputs("gpt2")
    norm = algebra.RecordTotals.norm
    monkeypatch.setattr(algebra.RecordTotals, "norm", lambda *args: norm(*args) * 1.001)
    with pytest.raises(UnweaveError, match="completeness failed: totals differ from a plain run"):
        decompose(model, inputs, ["a0.h0"], target)


def test_float32_and_half_weights_are_complete():
    model, inputs = tiny_model("llama").to(torch.bfloat16), tiny_inputs("llama")
    d = decompose(model, inputs, ["a0.h1"], rules="removal")
    assert d.rel["logits"].dtype == torch.float32
    assert d.completeness < 1e-5
    wide = decompose(model, inputs, ["a0.h1"], rules="removal", precision="float64")
    assert wide.rel["logits"].dtype == torch.float64
    gap = (d.rel["logits"] - wide.rel["logits"]).abs().max()
    assert gap < 1e-4 * size(wide.total["logits"])


# --- β = 0 before the source -------------------------------------------------------------------


@given(scenes())
def test_nothing_is_relevant_before_the_source(scene):
    d = run(scene)
    for i, source in enumerate(scene.sources):
        sites = [parse(name) for name in source]
        first = min(site.point.depth for site in sites)
        reached = [first_reached(site, scene) for site in sites]
        for name, rel in d.rel.items():
            point = parse(name).point
            if point.depth < first:
                assert (rel[i] == 0).all(), (source, name)
            elif rel.shape[2] == (scene.inputs.decoder or scene.inputs).mask.shape[1]:
                for row in range(rel.shape[1]):
                    start = min(r[row] for r in reached)
                    early = d.mask[name][row] & (torch.arange(rel.shape[2]) < start)
                    if point.stack == "" and point.kind not in ("ck", "cv"):
                        assert (rel[i, row, early].abs() < EXACT).all(), (source, name)


def first_reached(site: Site, scene: Scene) -> list[int]:
    """The first position of the decoder that a site can reach, per example."""
    mask = side_of(site.point, scene.inputs).mask
    if (
        not scene.causal
        or site.position is None
        or site.point.stack == "enc"
        or site.point.kind in ("ck", "cv")
    ):
        return [0] * len(mask)
    return [int(row.nonzero()[site.position]) for row in mask]


# --- the clamp ---------------------------------------------------------------------------------


@given(scenes(), st.sampled_from(["paper", "frozen", "removal", "linear"]))
def test_a_clamped_part_lies_between_0_and_the_total(scene, rules):
    """Sources are at a zero ablation: a source's own β = T − μ is not clamped."""
    d = run(scene, rules=f"{rules}, clamp=everywhere")
    for name, rel in d.rel.items():
        total = d.total[name]
        assert (rel >= total.clamp(max=0)).all(), name
        assert (rel <= total.clamp(min=0)).all(), name


@given(scenes(rules=["paper"]))
def test_paper_clamps_the_feed_forward_part(scene):
    d = run(scene)
    sown = {parse(name).point for source in scene.sources for name in source}
    for name, rel in d.rel.items():
        point, network = parse(name).point, scene.model.network
        stack = network.encoder if point.stack == "enc" else network.body
        after_mlp = (
            point.kind == "resid"
            and point.layer > 0
            and stack.blocks[point.layer - 1].mlp is not None
        )
        if after_mlp and point not in sown:
            total = d.total[name]
            assert (rel >= total.clamp(max=0)).all(), name
            assert (rel <= total.clamp(min=0)).all(), name


# --- how the work is cut changes nothing -------------------------------------------------------


@settings(max_examples=8)
@given(scenes(rows=(2, 3)), st.sampled_from([0, 100_000, 1_000_000]))
def test_chunks_change_nothing(scene, more):
    least = smallest_budget(functools.partial(run, scene))
    assert_same(run(scene), run(scene, memory=least + more))


@settings(max_examples=8)
@given(scenes(WITH_METRIC, rows=(2, 3)), st.sampled_from([0, 100_000, 1_000_000]), METRICS)
def test_chunks_change_no_score(scene, more, metric):
    scored = functools.partial(score, scene, metric, pairs="heads", ablation=scene.other)
    assert_same_scores(scored(), scored(memory=smallest_budget(scored) + more))


@settings(max_examples=8)
@given(scenes(rows=(2, 3)))
def test_padding_and_other_examples_change_nothing(scene):
    """Each row alone, its padding gone, is the same as in its padded batch."""
    together = run(scene, ablation=scene.other)
    for row in range(len(scene.inputs.mask)):
        alone = run(scene, trimmed(scene.inputs, row), ablation=trimmed(scene.other, row))
        for name, rel in together.rel.items():
            real = together.mask[name][row]
            bound = SAME * size(alone.total[name])
            assert ((rel[:, row][:, real] - alone.rel[name][:, 0]).abs() < bound).all(), name


@given(scenes(WITH_METRIC, rows=(2, 3)), METRICS)
def test_each_example_reads_its_own_logits(scene, metric):
    """Scores of a row alone, with its own answers and read position, are those in the batch."""
    readout = tiny_readout(scene.model, scene.inputs, metric)
    side = scene.inputs.decoder or scene.inputs
    together = relevance(scene.model, scene.inputs, scene.sources, readout, scene.rules, pairs=())
    for row in range(len(side.mask)):
        own = readout.select(slice(row, row + 1))
        before = (~side.mask[row, : own.read[0]]).sum()
        own = type(own)(own.metric, own.answers, own.distractors, own.read - before)
        alone = trimmed(scene.inputs, row)
        scores = relevance(scene.model, alone, scene.sources, own, scene.rules, pairs=())
        gap = (together.examples[:, row] - scores.examples[:, 0]).abs().max()
        assert gap < SAME * size(scores.examples)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(scene=scenes(positioned=True))
def test_pruned_positions_change_nothing(monkeypatch, scene):
    pruned = run(scene, ablation=scene.other)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "first_position", lambda *_: 0)
        whole = run(scene, ablation=scene.other)
    assert_same(pruned, whole)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(scene=scenes(WITH_METRIC, positioned=True, rows=(2, 3)), metric=METRICS)
def test_pruned_positions_change_no_score(monkeypatch, scene, metric):
    """Targets at named positions may lie before the first position that a source reaches."""
    options = {"ablation": scene.other, "pairs": ["heads", "heads@0", "heads@-1"]}
    pruned = score(scene, metric, **options)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "first_position", lambda *_: 0)
        whole = score(scene, metric, **options)
    assert_same_scores(pruned, whole)


def test_a_decoder_longer_than_its_encoder():
    """A source may begin at a position that the encoder does not have."""
    model, whole = tiny_model("t5"), tiny_inputs("t5", length=7)
    assert whole.tokens is not None
    few = whole.mask[:, :2], whole.tokens[:, :2]
    inputs = Inputs(*few, decoder=whole.decoder)
    sources = ["embed@2", "embed@5", "a1.h0@4", "enc.embed@1"]
    split = functools.partial(decompose, model, inputs, sources, "logits", "removal")
    d = split(memory=smallest_budget(split))
    for i, name in enumerate(sources):
        without = patched(model.network, inputs, [parse(name)], {})[LOGITS]
        assert (d.rest("logits")[i] - without).abs().max() < SAME * size(without)


@pytest.mark.parametrize("least", [False, True])
def test_a_ablation_by_rows_follows_its_examples(least):
    """Means are kept once a template; each example names its row."""
    model, inputs = tiny_model("gpt2"), tiny_inputs("gpt2", rows=3)
    points = {Point("z", 0), Point("mlp", 1)}
    means = activations(model, tiny_inputs("gpt2", rows=2, seed=1), points)
    rows = torch.tensor([1, 0, 1])
    sources = [["a0.h1"], ["m1@2"]]
    mean = Ablation("mean", means, rows)
    split = functools.partial(decompose, model, inputs, sources, rules="removal", ablation=mean)
    d = split(memory=smallest_budget(split) if least else None)
    base = {point: x[rows] for point, x in means.items()}
    for i, source in enumerate(sources):
        without = patched(model.network, inputs, [parse(name) for name in source], base)[LOGITS]
        assert (d.rest("logits")[i] - without).abs().max() < SAME * size(without)


def test_a_batch_of_a_task_brings_its_metric_positions_and_counterfactuals():
    model = tiny_model("gpt2")
    clean, corrupted = (tiny_inputs("gpt2", rows=3, seed=seed) for seed in (0, 1))
    readout, here = tiny_readout(model, clean), {"here": torch.tensor([1, 4, 2])}
    texts = ("", "", "")
    groups = torch.zeros(3, dtype=torch.long)
    batch = Batch(clean, corrupted, readout, readout.read, here, groups, True, texts, texts)
    sources = ["a0.h1@here", "m1"]
    brought = relevance(model, batch, sources, ablation="counterfactual", pairs="heads@here")
    given_all = relevance(
        model, clean, sources, readout, "removal", corrupted, "heads@here", positions=here
    )
    assert_same_scores(brought, given_all)


@given(scenes(), st.data())
def test_an_early_stop_changes_nothing(scene, data):
    name = data.draw(st.sampled_from(names_of(scene)))
    assert_same(run(scene, targets=[name]), _only(run(scene), name))


def _only(d: Decomposition, name: str) -> Decomposition:
    rel, total, mask = {name: d.rel[name]}, {name: d.total[name]}, {name: d.mask[name]}
    return Decomposition(d.sources, rel, total, mask, d.completeness)


# --- everything relevant, nothing relevant -----------------------------------------------------


def _records(x: object):
    if isinstance(x, tuple):
        for item in x:
            yield from _records(item)
    elif is_dataclass(x):
        yield x
        for field in fields(x):
            if field.name != "embedding":  # what comes before the first site
                yield from _records(getattr(x, field.name))


def conserves(network: Network, rules: str) -> bool:
    """Whether a set keeps everything relevant when everything is.

    `paper` does by its rules. The others give no share of a bias, so there must be none; then a
    frozen scale, pattern and gate pass all of T, and a removed whole leaves f(0) = 0. A slope
    does so only for a piecewise linear activation.
    """
    if rules == "paper":
        return True
    records = list(_records(network))
    biased = any(x.bias is not None for x in records if isinstance(x, Linear | Norm))
    bare = [b.body for s in _stacks(network) for k in s.blocks for b in k.branches]
    slopes = {m.activation.name for m in bare if isinstance(m, Mlp) and m.gate is None}
    slopes |= {x.name for x in network.head.steps if isinstance(x, Activation)}
    return not biased and (rules != "linear" or slopes <= {"relu"})


def _stacks(network: Network):
    return [stack for stack in (network.encoder, network.body) if stack is not None]


@settings(max_examples=24)
@given(scenes(rules=["paper", "frozen", "removal", "linear"]))
def test_everything_relevant_is_the_total_exactly_where_a_set_conserves(scene):
    every = ["embed", "enc.embed"] if scene.inputs.decoder is not None else ["embed"]
    d = decompose(scene.model, scene.inputs, [every], "logits", rules=scene.rules)
    rest, total = d.rest("logits")[0], d.total["logits"]
    # An output whose weights are all 0 (a padding token's) has no relevant input to go by.
    last = [x for x in scene.model.network.head.steps if isinstance(x, Linear)][-1:]
    alive = (last[0].matrix != 0).any(1) if last else torch.ones(total.shape[-1]).bool()
    worst = (rest[..., alive][d.mask["logits"]]).abs().max()
    if conserves(scene.model.network, scene.rules):
        assert worst < SAME * size(total)
    else:
        assert worst > 1e-3


def test_where_everything_is_relevant_float32_holds_too():
    """Rounding must not grow through the shares of biases."""
    for name in ("gpt2", "bert", "opt"):
        model = tiny_model(name).to(torch.float32)
        d = decompose(model, tiny_inputs(name), "embed", "logits", rules="paper")
        assert d.rest("logits").abs().max() < 1e-5 * size(d.total["logits"])


@given(scenes(WITH_METRIC), METRICS)
def test_a_ablation_of_its_own_activations_gives_score_0(scene, metric):
    """`paper` reads m(β), and the probability difference of logits that are all 0 is that of a
    uniform guess: with one distractor more than answers, −1/vocabulary."""
    scores = score(scene, metric, ablation=scene.inputs, pairs="heads")
    expected = torch.zeros_like(scores.examples)
    if scene.rules.startswith("paper") and metric is PROBABILITY_DIFFERENCE:
        readout = tiny_readout(scene.model, scene.inputs, metric)
        flat = torch.zeros(len(readout.read), outputs_of(scene.model), dtype=torch.float64)
        expected = readout.measure(flat).expand_as(expected)
    assert (scores.examples - expected).abs().max() < EXACT * 100
    for pairs in scores.pairs.values():
        assert pairs.abs().max() < EXACT * 100


# --- all pairs ---------------------------------------------------------------------------------


def pair_measures(d: Decomposition, name: str, base: Tensor) -> dict[str, Tensor]:
    """R(s, t) from β and γ, by its definition."""
    mask = d.mask[name].reshape(*d.mask[name].shape, *(1,) * (d.total[name].ndim - 2))
    rel, rest = d.rel[name] * mask, d.rest(name) * mask
    a, c = rel.flatten(2).abs().sum(-1), rest.flatten(2).abs().sum(-1)
    signed = (rel * (d.total[name] - base)).flatten(2).sum(-1)
    share = a.sum(1) / (a + c).sum(1)
    # A source that lies downstream reaches a target nowhere.
    ratio = torch.where(a == 0, 0.0, a / c).mean(1)
    return {"ratio": ratio, "share": share, "signed": signed.mean(1)}


@settings(max_examples=12)
@given(scenes(WITH_METRIC, rows=(2, 3)), st.booleans(), st.data())
def test_all_pairs_equal_one_run_per_target(scene, zero, data):
    model, inputs = scene.model, scene.inputs
    decoder = (inputs.decoder or inputs).mask
    named = {"here": torch.stack([row.nonzero()[len(row.nonzero()) // 2, 0] for row in decoder])}
    ablation = "zero" if zero else scene.other
    others = [str(s) for s in all_sites(model) if s.point.kind in ("mlp", "resid", "neuron", "q")]
    targets = ["heads", "a1.h1@here", "a0.h0@0", data.draw(st.sampled_from(others))]
    scores = score(scene, pairs=targets, ablation=ablation, positions=named)
    joint = run(scene, targets=scores.targets, ablation=ablation, positions=named)
    points = {parse(name).point for name in scores.targets}
    base = {} if zero else counterfactual(model, scene.other, points).values
    alone = data.draw(st.sampled_from(scores.targets))
    for column, name in enumerate(scores.targets):
        d = _only(joint, name)
        if name == alone:
            d = run(scene, targets=[name], ablation=ablation, positions=named)
        expected = pair_measures(d, name, _at(base, name, scene, named))
        for measure, value in expected.items():
            found = scores.pairs[measure][:, column]
            assert close(found, value), (measure, name)
        assert close(d.relevance(name).mean(1), expected["ratio"])


def close(a: Tensor, b: Tensor) -> bool:
    """Equal, or both beyond all bounds: a target that is its own source has γ = 0."""
    endless = (a > 1e100) & (b > 1e100)
    bound = SAME * size(b[~endless]) if (~endless).any() else SAME
    return bool((endless | ((a - b).abs() < bound)).all())


def _at(base: dict[Point, Tensor], name: str, scene: Scene, named: dict[str, Tensor]) -> Tensor:
    site = parse(name)
    if site.point not in base:
        return torch.zeros(())
    x = base[site.point] if site.unit is None else base[site.point][:, :, site.unit]
    if site.position is None:
        return x
    mask = side_of(site.point, scene.inputs).mask
    index = named.get(str(site.position), mask.long().argmax(1))
    return x[torch.arange(len(x)), index][:, None]


@given(scenes(WITH_METRIC), METRICS)
def test_scores_do_not_depend_on_the_pairs_that_are_asked_for(scene, metric):
    """A target past the last attention keeps every position there."""
    last = len(scene.model.network.body.blocks)
    few, many = (score(scene, metric, pairs=p) for p in ((), ["heads", f"resid{last}"]))
    assert_same_scores(few, many)


def test_normalised_scores_have_mean_magnitude_1_in_every_layer():
    model, inputs = tiny_model("gpt2"), tiny_inputs("gpt2")
    scores = relevance(model, inputs, "heads", tiny_readout(model, inputs), normalise=True)
    assert torch.allclose(scores.values.reshape(3, 4).abs().mean(1), torch.ones(3).double())


# --- interrupted, out of memory ----------------------------------------------------------------


@contextmanager
def failing(monkeypatch, reader: type, error: BaseException, calls: int):
    """A reader's `take` raises once, in the middle of its work."""
    take, seen = reader.take, []

    def wrapped(self, x, point, numbers):
        take(self, x, point, numbers)
        seen.append(point)
        if len(seen) == calls:
            raise error

    with monkeypatch.context() as patch:
        patch.setattr(reader, "take", wrapped)
        yield seen


def interrupted_scene() -> tuple:
    model, inputs = tiny_model("gpt2"), tiny_inputs("gpt2", rows=3)
    readout = tiny_readout(model, inputs)
    other = tiny_inputs("gpt2", rows=3, seed=1)

    def scores(rows: slice = slice(None), **options) -> Scores:
        part, base, own = inputs.select(rows), other.select(rows), readout.select(rows)
        sources = ["a0.h1", "m0@2", "a1.h2"]
        return relevance(model, part, sources, own, "removal", base, **options)

    return scores, model, inputs


def test_ctrl_c_stops(monkeypatch):
    """Whatever is finished by then: partial scores would pass for scores of all examples."""
    scores, *_ = interrupted_scene()
    least = smallest_budget(scores)
    with failing(monkeypatch, readers.Pairs, KeyboardInterrupt(), 10**9) as seen:
        scores(memory=least)
    for calls in (3, len(seen) - 3):
        with (
            failing(monkeypatch, readers.Pairs, KeyboardInterrupt(), calls),
            pytest.raises(KeyboardInterrupt),
        ):
            scores(memory=least)


ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes"),
]


@pytest.mark.parametrize("calls", [5, 20])
@pytest.mark.parametrize("error", ERRORS, ids=["gpu", "cpu"])
def test_out_of_memory_halves_the_chunk(monkeypatch, error, calls):
    scores, model, inputs = interrupted_scene()
    plans, fit = [], engine.fit

    def planned(*args):
        plans.append(fit(*args))
        return plans[-1]

    monkeypatch.setattr(engine, "fit", planned)
    whole, least = scores(), smallest_budget(scores)
    memory = 3 * least
    plans.clear()
    with failing(monkeypatch, readers.Pairs, error, calls):
        halved = scores(memory=memory)
    assert plans[0].examples > 1
    assert plans[1].rows < plans[0].rows
    assert_same_scores(whole, halved)

    d = decompose(model, inputs, ["a0.h1", "m1"], ["a1.h0", "logits"])
    plans.clear()
    with failing(monkeypatch, readers.Keep, error, 7):
        again = decompose(model, inputs, ["a0.h1", "m1"], ["a1.h0", "logits"], memory=memory)
    assert len(plans) > 1
    assert_same(d, again)


def test_out_of_memory_with_nothing_left_to_halve(monkeypatch):
    scores, *_ = interrupted_scene()
    monkeypatch.setattr(
        readers.Pairs, "take", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("no"))
    )
    with pytest.raises(torch.OutOfMemoryError):
        scores(memory=5_000_000)


def test_other_runtime_errors_are_not_taken_for_it(monkeypatch):
    scores, *_ = interrupted_scene()
    with (
        failing(monkeypatch, readers.Pairs, RuntimeError("shape mismatch"), 2),
        pytest.raises(RuntimeError, match="shape mismatch"),
    ):
        scores()
