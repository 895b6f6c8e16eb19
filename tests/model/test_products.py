"""`x Wᵀ + b` by oneDNN against float64, in value and derivative."""

import time

import pytest
import torch

from unweave.model import products
from unweave.model.products import linear


@pytest.fixture(autouse=True, params=[True, False], ids=["oneDNN", "MKL"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both kernels, whichever this processor would take."""
    if request.param and not torch.backends.mkldnn.is_available():
        pytest.skip("this build of torch has no oneDNN")
    monkeypatch.setattr(products, "_ONEDNN", request.param)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("lead", [(), (3,), (2, 0), (2, 3, 4)])
def test_value_and_derivative_are_those_of_float64(lead, bias):
    torch.manual_seed(0)
    x = torch.randn(*lead, 48, requires_grad=True)
    weight, offset = torch.randn(20, 48), torch.randn(20) if bias else None
    wide = x.detach().double().requires_grad_()
    out = linear(x, weight, offset)
    expected = torch.nn.functional.linear(
        wide, weight.double(), None if offset is None else offset.double()
    )
    assert out.dtype == torch.float32
    assert out.shape == expected.shape
    _close(out, expected)
    towards = torch.randn_like(out)
    _close(
        torch.autograd.grad(out, x, towards)[0],
        torch.autograd.grad(expected, wide, towards.double())[0],
    )


@pytest.mark.parametrize("strided", ["rows", "columns", "transposed", "input"])
def test_views_are_read_as_they_are(strided):
    torch.manual_seed(0)
    x, weight = torch.randn(6, 10), torch.randn(8, 10)
    match strided:
        case "rows":
            weight = torch.randn(16, 10)[::2]
        case "columns":
            weight = torch.randn(8, 20)[:, ::2]
        case "transposed":
            weight = torch.randn(10, 8).T
        case "input":
            x = torch.randn(1, 20)[:, ::2].expand(6, 10)
    _close(linear(x, weight), x.double() @ weight.double().T)


def test_part_of_a_fused_weight_does_not_take_long():
    """GPT-2's query: a third of a transposed matrix. oneDNN took 600 times as long for it."""
    torch.manual_seed(0)
    x, weight = torch.randn(16, 20, 128), torch.randn(128, 3 * 128).T[128:256]

    def seconds(product) -> float:
        taken = []
        for _ in range(4):
            began = time.process_time()
            product(x, weight)
            taken.append(time.process_time() - began)
        return min(taken)

    assert seconds(linear) < 30 * seconds(torch.nn.functional.linear) + 1e-3
    _close(linear(x, weight), x.double() @ weight.double().T)


def test_second_derivatives_exist():
    x = torch.randn(3, 4, requires_grad=True)
    weight = torch.randn(5, 4)
    (first,) = torch.autograd.grad(linear(x, weight).pow(2).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    _close(second, (2 * weight.T @ weight).sum(0).expand(3, 4).double())


def test_weights_that_learn_get_their_gradient():
    x, weight = torch.randn(3, 4), torch.randn(5, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(linear(x, weight).sum(), weight)
    _close(gradient, x.sum(0).expand(5, 4).double())


def test_float64_is_torch_s_own():
    x, weight = torch.randn(3, 4).double(), torch.randn(5, 4).double()
    assert torch.equal(linear(x, weight), torch.nn.functional.linear(x, weight))


def test_without_onednn_it_is_torch_s_own(monkeypatch):
    monkeypatch.setattr(products, "_ONEDNN", False)
    x, weight = torch.randn(3, 4), torch.randn(5, 4)
    assert torch.equal(linear(x, weight), torch.nn.functional.linear(x, weight))


def _close(found, expected):
    found, expected = found.detach().double(), expected.detach().double()
    assert (found - expected).norm() <= 1e-5 * expected.norm()
