"""lower/quant.py at its edges; tests/kernels/test_oracle.py compares the ordinary values with TensorFlow Lite."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcugrad.errors import ModelError
from mcugrad.graph.types import Activation
from mcugrad.lower import quant


@given(st.floats(2.0**-30, 2.0**29))
def test_a_multiplier_is_within_half_a_unit(real: float) -> None:
    mult, shift = quant.quantize_multiplier(real)
    assert 2**30 <= mult < 2**31
    assert abs(Fraction(mult) * Fraction(2) ** (shift - 31) - Fraction(real)) <= Fraction(2) ** (shift - 32)


def test_the_carry_goes_to_the_shift() -> None:
    assert quant.quantize_multiplier(1 - 2.0**-40) == quant.quantize_multiplier(1.0) == (2**30, 1)


@pytest.mark.parametrize("real", [0.0, 2.0**-33, 1e-300])
def test_what_is_too_small_is_zero(real: float) -> None:
    assert quant.quantize_multiplier(real) == (0, 0)


def test_the_smallest_multiplier() -> None:
    assert quant.quantize_multiplier(2.0**-32) == (2**30, -31)


@pytest.mark.parametrize(("real", "words"), [(2.0**30, "2\\^30"), (-1.0, "not a finite"), (math.nan, "nan"), (math.inf, "inf")])
def test_what_no_model_has_is_refused(real: float, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        quant.quantize_multiplier(real)


def test_a_linear_layer_with_one_scale_rounds_their_product_to_float() -> None:
    x, w = float.fromhex("0x1.99999ap-4"), float.fromhex("0x1.47ae14p-7")
    one, two = quant.linear_requant(x, [w], 0.3), quant.linear_requant(x, [w, w], 0.3)
    assert one["mult"][0] != two["mult"][0]
    assert one["shift"][0] == two["shift"][0]


def test_mul() -> None:
    mult, shift = quant.mul_params(0.5, 0.25, 0.1)
    assert mult * 2.0 ** (shift - 31) == pytest.approx(1.25)


def test_prelu() -> None:
    p = quant.prelu_params(0.5, 0.01, 0.1)
    assert p.pm * 2.0 ** (p.psh - 31) == pytest.approx(5.0)
    assert p.nm * 2.0 ** (p.nsh - 31) == pytest.approx(0.05)


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("half", [False, True])
def test_resize_rows_stay_inside(corners: bool, half: bool) -> None:
    for size_in in range(1, 12):
        for size_out in range(1, 24):
            rows = quant.resize_rows(size_in, size_out, align_corners=corners, half_pixel_centers=half)
            assert rows.dtype.name == "uint16"
            assert len(rows) == size_out
            assert 0 <= rows.min() <= rows.max() < size_in
            assert (rows[1:] >= rows[:-1]).all()


def test_resize_rows_of_a_doubled_image() -> None:
    assert quant.resize_rows(3, 6, align_corners=False, half_pixel_centers=False).tolist() == [0, 0, 1, 1, 2, 2]
    assert quant.resize_rows(3, 6, align_corners=True, half_pixel_centers=False).tolist() == [0, 0, 1, 1, 2, 2]
    assert quant.resize_rows(3, 6, align_corners=False, half_pixel_centers=True).tolist() == [0, 0, 1, 1, 2, 2]
    assert quant.resize_rows(4, 2, align_corners=True, half_pixel_centers=False).tolist() == [0, 3]
    assert quant.resize_rows(4, 2, align_corners=False, half_pixel_centers=True).tolist() == [1, 3]


def test_softmax_caps_its_multiplier() -> None:
    p = quant.softmax_params(1.0, 1000.0)
    assert (p.mult, p.shift, p.diff_min) == (2**31 - 1, 30, 0)


def test_softmax_refuses_a_scale_of_nothing() -> None:
    with pytest.raises(ModelError, match="below 2\\^-26"):
        quant.softmax_params(1.0, 1e-9)


@pytest.mark.parametrize(
    ("activation", "bounds"),
    [
        (Activation.NONE, (-128, 127)),
        (Activation.RELU, (-100, 127)),
        (Activation.RELU6, (-100, 20)),
        (Activation.RELU_N1_1, (-120, -80)),
    ],
)
def test_activation_range(activation: Activation, bounds: tuple[int, int]) -> None:
    assert quant.activation_range(activation, 0.05, -100) == bounds


def test_activation_range_stays_in_int8() -> None:
    assert quant.activation_range(Activation.RELU6, 0.001, -128) == (-128, 127)
