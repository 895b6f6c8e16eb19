"""`check_architecture`: the contract of a file in `model/architectures`."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from unweave.errors import UnweaveError
from unweave.model.checkpoint import Architecture, architecture
from unweave.model.loading import from_transformers
from unweave.model.weights import Network
from unweave.testing.oracle import build
from unweave.testing.parity import Parity, find_parity

DTYPES = (torch.float32, torch.float64)


def check_architecture(name: str) -> list[Parity]:
    """Checks that an architecture's file computes what transformers computes.

    Each tiny config becomes a random model, in float32 and float64, whose logits and block outputs
    must agree on random inputs; with the file's `wrong` config they must not.

    Args:
        name: The architecture's name, transformers' `model_type`.

    Returns:
        One report a variant and dtype.

    Raises:
        AssertionError: Naming the first component that diverges.
    """
    reports = list(parities(name))
    failed = [str(report) for report in reports if not report.passed]
    assert not failed, "\n".join(failed)
    control = negative_control(name)
    assert not control.passed, f"{control.name}: agrees, though its config is wrong"
    return reports


def parities(name: str) -> Iterator[Parity]:
    """The report of every tiny variant, in float32 and float64."""
    for variant, tiny in _family(name).tiny.items():
        for dtype in DTYPES:
            oracle = build(tiny, dtype)
            title = f"{name}, {variant}, {str(dtype).removeprefix('torch.')}"
            yield find_parity(network_of(oracle), oracle, title)


def negative_control(name: str) -> Parity:
    """The report of the first variant, read with the architecture's wrong config."""
    family = _family(name)
    oracle = build(next(iter(family.tiny.values())))
    return find_parity(network_of(oracle, family.wrong), oracle, f"{name}, wrong on purpose")


def network_of(oracle: Any, changes: Mapping[str, Any] | None = None) -> Network:
    """The network of a transformers model, maybe read with some config fields changed."""
    if changes:
        oracle = copy.copy(oracle)
        oracle.config = copy.deepcopy(oracle.config)
        oracle.config.update(dict(changes))
    return from_transformers(oracle).network


def _family(name: str) -> Architecture:
    family = architecture(name)
    if not family.tiny:
        raise UnweaveError(
            f"architecture {name!r} has no tiny configs: transformers has no class to compare with"
        )
    return family
