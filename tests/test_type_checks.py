"""What the suite checks of every function as it runs: types, shapes, and shapes that agree."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from jaxtyping import TypeCheckError
from type_checks import install

from unweave.evaluation.faithfulness import from_metric
from unweave.scores.problem import Reference

SOURCE = """
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, no_type_check

from jaxtyping import Float
from torch import Tensor

if TYPE_CHECKING:
    from somewhere import Unknown

Row = Float[Tensor, " n"]


@dataclass(frozen=True)
class Pair:
    left: Row
    right: Row

    @property
    def size(self) -> int:
        return "two"

    @classmethod
    def of(cls, both: Row) -> "Pair":
        return cls(both, both)


@dataclass(frozen=True)
class Names:
    left: str
    right: str


def product(a: Float[Tensor, "n m"], b: Float[Tensor, "m k"]) -> Float[Tensor, "n k"]:
    return a @ b


def transposed(a: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
    return a.T


def steps(a: Row, b: Row) -> Iterator[int]:
    yield len(a) + len(b)


def adder(more: int) -> Callable[[int], int]:
    def add(to: int) -> int:
        return to + more

    return add


def halves(more: Row) -> Callable[[Row], Row]:
    def half(of: Row) -> Row:
        return of[:1] if more.sum() > 0 else of

    return half


def unknown(x: "Unknown", y: int) -> int:
    return y


@no_type_check
def unchecked(x: int) -> int:
    return x
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "a_package_to_check.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    install("a_package_to_check")
    yield importlib.import_module("a_package_to_check")
    del sys.modules["a_package_to_check"]


ONE, TWO = torch.zeros(1), torch.zeros(2)


def test_what_fits_its_annotations_runs(package: ModuleType) -> None:
    assert package.product(torch.ones(2, 3), torch.ones(3, 4)).shape == (2, 4)
    assert package.Pair.of(TWO).left is TWO
    assert package.Names("a", "b").right == "b"
    assert next(package.steps(TWO, TWO)) == 4
    assert [package.adder(more)(1) for more in (1, 2, 3)] == [2, 3, 4]
    assert package.halves(-TWO)(TWO) is TWO
    assert package.unknown("anything", 1) == 1
    assert package.unchecked("anything") == "anything"
    # Dimensions of one call say nothing about the next, in a nested function either.
    assert package.product(torch.ones(5, 6), torch.ones(6, 7)).shape == (5, 7)
    assert package.halves(-TWO)(-ONE).shape == (1,)


@pytest.mark.parametrize(
    "call",
    [
        lambda p: p.product(torch.ones(2), torch.ones(3, 4)),
        lambda p: p.product(torch.ones(2, 3), torch.ones(2, 4)),
        lambda p: p.product(torch.ones(2, 3).long(), torch.ones(3, 4).long()),
        lambda p: p.transposed(torch.ones(2, 3)),
        lambda p: p.Pair(ONE, TWO),
        lambda p: p.Pair.of(1.0),
        lambda p: p.Pair(ONE, ONE).size,
        lambda p: p.Names("a", 1),
        lambda p: next(p.steps(ONE, TWO)),
        lambda p: p.adder(1)("1"),
        lambda p: (p.adder(1)(1), p.adder(2)("1")),
        lambda p: p.halves(ONE + 1)(TWO),
        lambda p: (p.halves(-ONE)(TWO), p.halves(ONE + 1)(TWO)),
        lambda p: p.unknown("anything", "1"),
    ],
)
def test_what_does_not_fit_is_an_error(package: ModuleType, call) -> None:
    with pytest.raises(TypeCheckError):
        call(package)


def test_the_package_itself_is_checked() -> None:
    full, empty = torch.ones(3), torch.zeros(3)
    assert from_metric(Reference(full, empty), full).value == 1
    with pytest.raises(TypeCheckError):
        from_metric(Reference(full, empty), full[None])
    with pytest.raises(TypeCheckError):
        Reference(full, torch.zeros(2))


def test_it_comes_before_the_package() -> None:
    with pytest.raises(RuntimeError, match="unweave is imported already"):
        install("unweave")


def test_bytecode_with_checks_is_not_kept(package: ModuleType) -> None:
    assert package.__file__ is not None
    assert not list(Path(package.__file__).parent.rglob("*.pyc"))
