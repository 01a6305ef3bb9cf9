"""The 1-bit clamp mask: C equals the reference, and an error step gives the same bytes from the bits as from the tensor itself."""

from __future__ import annotations

import numpy as np
import pytest
import test_add
import test_conv2d
import test_dwconv2d
import test_linear
import test_minmax
import test_mul
import test_pool
import test_resize
import test_softmax
from harness import Array, check, content
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import Draw, Scalars, lengths, sweep

from mcugrad.plan.opsdef import kinds

edges = st.sampled_from([-32768, -129, -128, -1, 0, 1, 127, 128, 32767]) | st.integers(-130, 130)


@st.composite
def mask(draw: Draw) -> Scalars:
    return {"n": draw(lengths), "lo": draw(edges), "hi": draw(edges)}


test_s8, test_s8_more = sweep("mask_s8", mask())

ERRORS = {
    "conv2d_bwd_x_s8": test_conv2d.error(),
    "dwconv2d_bwd_x_s8": test_dwconv2d.error(),
    "linear_bwd_x_s8": test_linear.error(),
    "avgpool_bwd_x_s8": test_pool.error(),
    "add_bwd_x_s8": test_add.error(),
    "sum_bwd_x_s8": test_add.spread_error(),
    "mul_bwd_a_s8": test_mul.error_a(),
    "mul_bwd_b_s8": test_mul.error_b(),
    "minmax_bwd_x_s8": test_minmax.error(),
    "softmax_bwd_x_s8": test_softmax.error(),
    "resize_bwd_x_s8": test_resize.error(),
}


def test_the_order_of_the_bits() -> None:
    """The first element is the lowest bit; both limits are excluded; the last byte is filled up with zeros."""
    x = np.array([-128, -127, 0, 126, 127, 5, 5, 5, 127, 126], np.int8)
    a = check("mask_s8", {"n": 10, "lo": -128, "hi": 127}, 1, {"x": x})
    assert a["bits"].tolist() == [0b11101110, 0b10]


def test_every_kind_with_bits_is_compared() -> None:
    assert set(ERRORS) == {name for name, kind in kinds().items() if any(s.name == "has_bits" for s in kind.scalars)}


@pytest.mark.parametrize("name", sorted(ERRORS))
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_bits_do_what_x_does(name: str, data: st.DataObject, seed: int) -> None:
    k = data.draw(ERRORS[name]) | {"has_mask": 1, "has_bits": 0}
    rng = np.random.default_rng(seed)
    kind = kinds()[name]
    contents: dict[str, Array] = {r.name: content(rng, r.type, n) for r, n in zip(kind.refs, kind.counts(k).values(), strict=True)}
    a = check(name, k, seed, contents)
    made = check("mask_s8", {"n": len(contents["x"]), "lo": k["lo"], "hi": k["hi"]}, seed, {"x": contents["x"]})["bits"]
    b = check(name, k | {"has_mask": 0, "has_bits": 1}, seed, contents | {"bits": made})
    assert np.array_equal(a["dx"], b["dx"])
    assert a["rx"].tolist() == b["rx"].tolist()
