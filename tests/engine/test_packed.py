"""Packed weights: which of them float16 can hold, and what their products are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from engine.packed import PIECE, FullWeight, HalfWeight, can_pack, half_row_tile, half_scale, pack_weight

here = pytest.mark.skipif(
    not can_pack(torch.device("cpu")) or half_row_tile() is None, reason="no packed weights on this processor"
)


def weights(seed: int = 0, *, outputs: int = 40, inputs: int = 96) -> Tensor:
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed)) / 30


def test_weights_in_16_bits_fit() -> None:
    assert half_scale(weights().half().float()) == 1
    assert half_scale(torch.zeros(3, 4)) == 1
    of_bfloat16 = weights().bfloat16().float()
    of_bfloat16[0, :3] = torch.tensor([1e-6, -3e-7, 1e-12]).bfloat16()  # less than float16 knows
    scale = half_scale(of_bfloat16)
    assert scale is not None and scale > 1
    lost = (of_bfloat16 * scale).half().float() / scale - of_bfloat16
    assert float(lost.abs().max()) < 1e-9 * float(of_bfloat16.abs().max())


def test_weights_that_would_lose_stay_as_they_are() -> None:
    assert half_scale(weights()) is None
    assert half_scale(weights().bfloat16()) is None  # products in bfloat16 are another matter
    rows_apart = weights().bfloat16().float()
    rows_apart[1] *= 2.0**-40  # in the shadow of the others' scale all of it would be lost
    assert half_scale(rows_apart) is None
    for broken in ("nan", "inf", "-inf"):
        bad = weights().half().float()
        bad[2, 2] = float(broken)
        assert half_scale(bad) is None


@here
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("outputs", [40, PIECE + 100])
def test_products_of_half_weights_are_those_of_float32(bias: bool, outputs: int) -> None:
    linear = nn.Linear(96, outputs, bias=bias)
    linear.weight.data = weights(outputs=outputs).bfloat16().float()
    linear.weight.data[0, 0] = 1e-6  # needs a scale
    packed = pack_weight(linear)
    assert isinstance(packed, HalfWeight)
    rows = torch.randn(3 * packed.row_tile, 96)
    exact = linear.double()(rows.double())
    assert torch.allclose(packed(rows).double(), exact, rtol=0, atol=1e-5)
    assert torch.allclose(packed(rows[None])[0].double(), exact, rtol=0, atol=1e-5)
    residual = torch.randn(len(rows), outputs)
    assert torch.allclose(packed.plus(rows, residual).double(), exact + residual.double(), rtol=0, atol=1e-5)


@here
@pytest.mark.parametrize("count", [1, 15, 16, 17, 40])
def test_products_of_full_weights_are_those_of_the_module(count: int) -> None:
    linear = nn.Linear(96, 40)
    packed, rows, residual = pack_weight(linear), torch.randn(count, 96), torch.randn(count, 40)
    assert isinstance(packed, FullWeight)
    assert torch.allclose(packed(rows), linear(rows), rtol=0, atol=1e-5)
    assert torch.allclose(packed(rows[None])[0], linear(rows), rtol=0, atol=1e-5)
    assert torch.allclose(packed.plus(rows, residual), linear(rows) + residual, rtol=0, atol=1e-5)


@here
def test_several_weights_of_one_input_are_one_product() -> None:
    linears = [nn.Linear(96, outputs, bias=False) for outputs in (8, 24, 16)]
    for linear in linears:
        linear.weight.data = linear.weight.data.half().float()
    rows = torch.randn(6, 96)
    together = torch.cat([linear(rows) for linear in linears], 1)
    assert torch.allclose(pack_weight(*linears)(rows), together, rtol=0, atol=1e-5)


@here
def test_a_row_of_a_product_does_not_depend_on_how_many_there_are() -> None:
    linear = nn.Linear(1100, 70)
    linear.weight.data = linear.weight.data.half().float()
    packed = pack_weight(linear)
    tile = packed.row_tile
    rows = torch.randn(700 // tile * tile, 1100)
    whole = packed(rows)
    for count in range(tile, len(rows), tile):
        assert torch.equal(packed(rows[:count]), whole[:count])
