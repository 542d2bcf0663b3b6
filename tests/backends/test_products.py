"""Products by either library against float64, and batches filled up with null records."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small import blobs

from sweeper.backends import closed_form, layered, products
from sweeper.backends.closed_form import LinearProblem
from sweeper.backends.layered import LayeredProblem
from sweeper.backends.products import FILL, exact_products, filled, product
from sweeper.clip.fixed import FixedClip
from sweeper.models.convnet import ConvNet
from sweeper.models.linear import Softmax
from sweeper.models.mlp import Mlp

CLIP = FixedClip(clip_norm=0.5)
LARGE, SMALL = (128, 784, 256), (7, 5, 3)


def factors_of(shape: tuple[int, int, int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows, inner, columns = shape
    stream = torch.Generator().manual_seed(sum(shape))
    return tuple(torch.randn(*size, generator=stream) for size in ((rows, inner), (inner, columns), (columns,)))  # type: ignore[return-value]


def off(found: torch.Tensor, *factors: torch.Tensor) -> float:
    """The largest error, as a multiple of the bound K 2^-24 sum |x| |y| on a float32 product in any order."""
    left, right, *biases = (factor.double() for factor in factors)
    exact, whole = left @ right, left.abs() @ right.abs()
    if biases:
        exact, whole = exact + biases[0], whole + biases[0].abs()
    return float(((found.double() - exact).abs() / (whole * (left.shape[1] + 1) * 2.0**-24)).max())


@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("shape", [LARGE, SMALL, (16, 128, 784), (0, 784, 256), (256, 0, 784)])
def test_a_product_is_within_the_bound_on_float32(shape, few, onednn, monkeypatch):
    monkeypatch.setattr(products, "_ONEDNN", onednn and products._ONEDNN)
    left, right, biases = factors_of(shape)
    plain, with_biases = product(left, right, few=few), product(left, right, biases, few=few)
    turned = product(left.t().contiguous().t(), right.t().contiguous().t(), few=few)
    if left.numel() and right.numel():
        assert max(off(plain, left, right), off(turned, left, right), off(with_biases, left, right, biases)) <= 1
        assert min(off(plain * 1.5, left, right), off(plain / 1.5, left, right)) > 1
    assert plain.dtype == torch.float32
    assert plain.shape == (shape[0], shape[2])


@pytest.mark.parametrize("shape", [LARGE, SMALL])
def test_a_row_does_not_depend_on_the_others(shape):
    left, right, _ = factors_of(shape)
    other = left.clone()
    other[3:] = 0
    assert torch.equal(product(left, right)[:3], product(other, right)[:3])


def test_products_are_in_float32_whatever_a_user_asked_torch_for():
    torch.set_float32_matmul_precision("medium")
    exact_products()
    assert torch.get_float32_matmul_precision() == "highest"


def test_lengths_are_few():
    assert {filled(count, FILL, 128) for count in range(129)} == set(range(0, 129, FILL))
    assert all(filled(count, FILL, 128) >= count for count in range(129))
    assert [filled(count, 1, 128) for count in (0, 5, 128)] == [0, 5, 128]
    assert filled(5, FILL, 7) == 7


def asked(model, rows: int, params=None):
    full, description = blobs(40, 48, 4)
    problem, seen = LayeredProblem(model=model, description=description, table=full, rows=np.arange(40)), []
    params_P = torch.linspace(-0.3, 0.4, sum(problem.layers)) if params is None else params(sum(problem.layers))

    def factors(squares_BL):
        seen.append(len(squares_BL))
        return CLIP.factors(squares_BL)

    batch = problem.batch(np.arange(rows))
    summed_P, count = batch.sum_and_count(params_P, factors, lambda squares_BL: torch.full((len(squares_BL),), 0.5))
    along_J = batch.losses_along(params_P, params_P, [0.5], lambda here, there: here - there)
    return summed_P.double(), count, along_J, seen, problem.nonfinite


@pytest.mark.parametrize("rows", [0, 1, 15, 16, 17, 40])
def test_what_fills_a_batch_up_adds_nothing_and_is_not_seen(rows, monkeypatch):
    found = asked(Mlp(hidden=(6,)), rows)
    monkeypatch.setattr(layered, "FILL", 1)
    alone = asked(Mlp(hidden=(6,)), rows)
    assert torch.linalg.norm(found[0] - alone[0]) <= 1e-6 * torch.linalg.norm(alone[0])
    assert found[1] == alone[1] == 0.5 * rows
    assert torch.allclose(found[2], alone[2], rtol=1e-6)
    assert found[3] == alone[3] == [rows]


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 3e38])
@pytest.mark.parametrize("model", [Mlp(hidden=(6,)), ConvNet(layers=(2, "pool"), kernel=1)])
def test_broken_parameters_leave_out_the_records_drawn_and_no_others(model, value):
    """A null record's delta of 0 times an infinite weight is no number: it must not reach the sum, nor be counted."""
    summed_P, _, _, _, left_out = asked(model, 5, lambda size: torch.full((size,), value))
    assert not summed_P.any()
    assert left_out == 5


@pytest.mark.parametrize("rows", [128, 200, 1024, 1100])
def test_many_logits_give_the_same_sum_by_either_library(rows, monkeypatch):
    full, description = blobs(rows, 40, 300)
    problem, seen = LinearProblem(model=Softmax(), description=description, table=full, rows=np.arange(rows)), []
    params_P, calls = torch.linspace(-1, 1, 300 * 41), []
    monkeypatch.setattr(closed_form, "product", lambda *of, few: calls.append(few) or product(*of, few=few))

    def factors(squares_BL):
        seen.append(len(squares_BL))
        return CLIP.factors(squares_BL)

    found = problem.batch(np.arange(rows)).sum(params_P, factors)
    assert any(calls)
    problem._wide = False
    alone = problem.batch(np.arange(rows)).sum(params_P, factors)
    assert torch.linalg.norm(found - alone) < 1e-6 * torch.linalg.norm(alone)
    assert sum(seen) == 2 * rows
