"""Short hashes of what the names of task and model stand for: either may change between two runs.

A hash that a record does not have is not compared: older runs hashed some values of each weight,
as "weights".
"""

from contextlib import suppress
from functools import cache
from hashlib import blake2b

import torch
from jaxtyping import Int32
from torch import Tensor

from unweave.behaviours.task import Task
from unweave.errors import UnweaveError
from unweave.model.model import Model
from unweave.model.weights import tensors

_BLOCK = 2**18  # weights that are summed at once: work that stays in a CPU's cache
_PROMPTS = 16


def fingerprint(model: Model, task: Task, seed: int) -> dict[str, str]:
    """Hashes of the model's weights, of the prompts as it reads them, and of a file or dataset.

    Args:
        seed: Decides which prompts are drawn.
    """
    found = {"model": weights_hash(model)}
    # Where prompts cannot be drawn, what needs them for its work says so, for this task alone.
    with suppress(UnweaveError):
        found["prompts"] = _prompts_hash(model, task, seed)
    if task.digest is not None:
        found["task"] = task.digest
    return found


def weights_hash(model: Model) -> str:
    """A hash of every weight, in its place.

    The bits of each value, as float32, times an odd number of its place in a block, are summed
    modulo 2³²: no single value can change without the sum. Whole numbers have the same sum on every
    device, and one checkpoint has it however it is stored, in bfloat16, in float32 or in float64.
    """
    digest, device = blake2b(digest_size=8), model.network.device
    odd = _odd_numbers(device)
    for tensor in tensors(model.network):
        sums = []
        for block in tensor.detach().flatten().split(_BLOCK):
            bits = block.to(device).float().view(torch.int32)
            sums.append((bits * odd[: len(bits)]).sum(dtype=torch.int32))
        digest.update(str(tuple(tensor.shape)).encode())
        digest.update(torch.stack(sums).cpu().numpy().tobytes())
    return digest.hexdigest()


@cache
def _odd_numbers(device: torch.device) -> Int32[Tensor, " block"]:
    places = torch.arange(_BLOCK, device=device) * 0x9E3779B1
    return (places >> 7 & 0x7FFFFFFF | 1).to(torch.int32)


def _prompts_hash(model: Model, task: Task, seed: int) -> str:
    """A hash of some prompts as tokens: of the tokenizer, and of code that writes prompts."""
    drawn = task.prompts(model, _PROMPTS, seed, "discover", only_correct=False)
    batch, digest = task.encode(model, drawn), blake2b(digest_size=8)
    inputs = (batch.clean.tokens, batch.corrupted.tokens)
    for tokens in (*inputs, batch.readout.answers, batch.readout.distractors):
        if tokens is not None:
            digest.update(str(tokens.tolist()).encode())
    return digest.hexdigest()
