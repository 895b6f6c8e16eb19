"""A budget is a promise: what a call takes at its peak, results included, stays below it."""

import ctypes
import gc
import re
from pathlib import Path

import pytest
import torch

from unweave.batch import Readout
from unweave.decomposition.api import decompose, relevance
from unweave.decomposition.memory import Chunks, Footprint, fit, memory_budget
from unweave.errors import UnweaveError
from unweave.metrics import LOGIT_DIFFERENCE
from unweave.model.checkpoint import Tiny
from unweave.model.loading import from_transformers
from unweave.testing.oracle import build

STATUS = Path("/proc/self/status")
EXAMPLES, LENGTH, VOCAB = 6, 24, 20_000


@pytest.fixture(scope="module")
def model():
    config = {
        "hidden_size": 256,
        "intermediate_size": 1024,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": VOCAB,
        "max_position_embeddings": 64,
    }
    return from_transformers(build(Tiny("LlamaForCausalLM", config), torch.float32))


def peak_of(call) -> int:
    """Bytes beyond what the process held before, by Linux's own account."""

    def status(field: str) -> int:
        found = re.search(rf"{field}:\s+(\d+) kB", STATUS.read_text())
        assert found is not None
        return int(found[1]) * 1024

    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # sets the peak back to what is used now
    before = status("VmRSS")
    call()
    return status("VmHWM") - before


def calls(model):
    draw = torch.Generator().manual_seed(0)
    clean, other = torch.randint(0, VOCAB, (2, EXAMPLES, LENGTH), generator=draw)
    ids = torch.randint(0, VOCAB, (2, EXAMPLES, 1), generator=draw)
    read = torch.full((EXAMPLES,), LENGTH - 1)
    readout = Readout(LOGIT_DIFFERENCE, ids[0], ids[1], read)
    return {
        "logits": lambda memory: decompose(model, clean[:2], ["a0.h1", "m1"], memory=memory),
        "inside": lambda memory: decompose(model, clean, "heads", ["m2", "a2.h0"], memory=memory),
        "scores": lambda memory: relevance(
            model, clean, "heads", readout, ablation=other, memory=memory
        ),
    }


@pytest.mark.skipif(not STATUS.exists(), reason="needs Linux's account of a process's memory")
@pytest.mark.parametrize(
    ("name", "memory"), [("logits", "40MB"), ("inside", "25MB"), ("scores", "12MB")]
)
def test_a_budget_is_kept(model, name, memory):
    call = calls(model)[name]
    call(memory)  # what torch allocates once and keeps is not the call's
    # The least of some tries, and room for the torn heap of a process that ran other tests before:
    # in a fresh one the peak is below the budget itself.
    peak = min(peak_of(lambda: call(memory)) for _ in range(3))
    assert peak < 1.25 * memory_budget(memory, torch.device("cpu"))


@pytest.mark.parametrize("name", ["logits", "inside", "scores"])
def test_an_impossible_budget_names_the_smallest_possible_one(model, name):
    call = calls(model)[name]
    with pytest.raises(UnweaveError, match=r"memory 100KB is not enough") as caught:
        call("100KB")
    least = re.search(r"results take (\d+)MB, the smallest possible budget", str(caught.value))
    assert least is not None
    call(f"{least[1]}MB")
    with pytest.raises(UnweaveError, match="the smallest possible budget"):
        call(f"{int(least[1]) - 1}MB")


def test_an_impossible_budget_is_found_before_anything_is_run(model, monkeypatch):
    monkeypatch.setattr("unweave.decomposition.jobs.counterfactual", lambda *_: 1 / 0)
    with pytest.raises(UnweaveError, match="is not enough"):
        calls(model)["scores"]("1MB")


def test_the_bytes_of_a_job_are_counted_by_hand():
    job = Footprint(fixed=500, example=100, carried=20, row=10, head_row=30, positions=16, read=4)
    # Two examples' totals, six residual streams, and the larger of 40 rows and 10 rows of the head.
    assert job.bytes(Chunks(2, 3, 40, 10)) == 500 + 2 * 100 + 6 * 20 + max(40 * 10, 10 * 30)
    assert job.bytes(Chunks(2, 3, 20, 20)) == 500 + 2 * 100 + 6 * 20 + max(32 * 10, 20 * 30)


@pytest.mark.parametrize("budget", [1_100, 2_000, 5_000, 50_000, 10**7])
def test_chunks_fill_a_budget_and_no_more(budget):
    job = Footprint(fixed=500, example=100, carried=20, row=10, head_row=30, positions=16, read=4)
    assert job.least == 500 + 100 + 20 + 160
    chunks = fit(job, 12, 40, budget, torch.device("cpu"))
    assert job.bytes(chunks) <= budget
    assert 1 <= chunks.examples <= 12
    assert 1 <= chunks.sources <= 40
    if budget == 10**7:
        assert chunks.sources == 40
    with pytest.raises(UnweaveError, match="the smallest possible budget"):
        fit(job, 12, 40, job.least - 1, torch.device("cpu"))
    assert fit(job, 12, 40, job.least, torch.device("cpu")) == Chunks(1, 1, 16, 5)
