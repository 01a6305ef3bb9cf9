"""Outputs laid over their inputs at the distances that memory/overlap.py allows give the same results. Closer, they do not.

The reference reads everything before it writes, so overlapping bytes are wrong exactly where C differs from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import test_add
import test_conv2d
import test_copy
import test_dwconv2d
import test_linear
import test_lookup
import test_minmax
import test_mul
import test_pool
import test_prelu
import test_resize
import test_softmax
from harness import Array, Layout, copied, lay_out, reference
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import Scalars

from mcugrad.memory.overlap import Lags, lags
from mcugrad.native import aligned, run_step
from mcugrad.plan.codec import Region, offset_of, ref, region_of
from mcugrad.plan.opsdef import TYPES, kinds
from mcugrad.ref.memory import DTYPES, Memory, bind
from mcugrad.ref.window import tap

KINDS: Mapping[str, st.SearchStrategy[Scalars]] = {
    "conv2d_fwd_s8": test_conv2d.forward(),
    "dwconv2d_fwd_s8": test_dwconv2d.forward(),
    "linear_fwd_s8": test_linear.forward_s8(),
    "linear_fwd_s32": test_linear.forward_s32(),
    "requant_fwd_s8": test_linear.requant(),
    "avgpool_fwd_s8": test_pool.forward(),
    "maxpool_fwd_s8": test_pool.forward(),
    "add_fwd_s8": test_add.forward(),
    "mul_fwd_s8": test_mul.forward(),
    "minmax_fwd_s8": test_minmax.forward(),
    "softmax_fwd_s8": test_softmax.forward(),
    "lut_fwd_s8": test_lookup.forward(),
    "prelu_fwd_s8": test_prelu.forward(),
    "resize_fwd_s8": test_resize.shape(),
    "copy_s8": test_copy.block() | test_copy.ascending(),
    "conv2d_bwd_x_s8": test_conv2d.error(),
    "dwconv2d_bwd_x_s8": test_dwconv2d.error(),
    "linear_bwd_x_s8": test_linear.error(),
    "avgpool_bwd_x_s8": test_pool.error(),
    "maxpool_bwd_x_s8": test_pool.error_of_maximum(),
    "add_bwd_x_s8": test_add.error(),
    "sum_bwd_x_s8": test_add.spread_error(),
    "mul_bwd_a_s8": test_mul.error_a(),
    "mul_bwd_b_s8": test_mul.error_b(),
    "minmax_bwd_x_s8": test_minmax.error(),
    "lut_bwd_x_s8": test_lookup.error(),
    "prelu_bwd_x_s8": test_prelu.error(),
    "softmax_bwd_x_s8": test_softmax.error(),
    "resize_bwd_x_s8": test_resize.error(),
}
quiet = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
often = settings(quiet, max_examples=400)


# ---- two references laid over each other ------------------------------------------------------------------------------


def overlaid(layout: Layout, read: str, written: str, distance: int) -> Layout:
    """The same step with ``written`` starting ``distance`` bytes below ``read``, both in a new stretch of ARENA."""
    sizes = layout.kind.nbytes(layout.values)
    arena = layout.regions[Region.ARENA]
    start = -(-len(arena) // 16) * 16 + 16
    memory = aligned(start + max(sizes[written], distance + sizes[read]) + 16)
    memory[: len(arena)] = arena
    for name, at in ((written, start), (read, start + distance)):
        place = int(layout.values[name])
        memory[at : at + sizes[name]] = layout.regions[region_of(place)][offset_of(place) :][: sizes[name]]
    values = dict(layout.values) | {written: ref(Region.ARENA, start), read: ref(Region.ARENA, start + distance)}
    regions = (memory, *layout.regions[1:])
    return Layout(layout.kind, values, layout.kind.pack(values), regions)


def results(layout: Layout, regions: tuple[Memory, ...]) -> dict[str, bytes]:
    """What a step has written; of a copy only the places of the block."""
    _, arrays = bind(layout.kind, layout.values, regions)
    if layout.kind.name == "copy_s8":
        return {"y": arrays["y"][test_copy.places(layout.values, "y")].tobytes()}
    return {r.name: arrays[r.name].tobytes() for r in layout.kind.refs if r.writes}


def run_c(layout: Layout) -> tuple[Memory, ...]:
    regions = copied(layout.regions)
    assert run_step(layout.record, regions) == 0
    return regions


def given_for(name: str, k: Scalars, seed: int) -> Mapping[str, Array] | None:
    """The tables of a resize: any, or as a resize has them."""
    if not name.startswith("resize"):
        return None
    if seed % 2:
        return test_resize.tables(k, np.random.default_rng(seed))
    return {a: (np.arange(k[o]) * k[n] // k[o]).astype(np.uint16) for a, n, o in (("rows", "h", "p"), ("cols", "w", "q"))}


def lags_of(name: str, k: Scalars, contents: Mapping[str, Array] | None) -> Lags:
    return lags(kinds()[name], k, None if contents is None else contents["rows"].tolist())


def element(name: str, reference_name: str) -> int:
    (found,) = (TYPES[r.type][0] for r in kinds()[name].refs if r.name == reference_name)
    return found


@pytest.mark.parametrize("name", sorted(KINDS))
@quiet
@given(data=st.data(), seed=st.integers(0, 2**32 - 1), extra=st.sampled_from([0, 0, 1, 2, 3, 4, 7, 8, 16]) | st.integers(0, 400))
def test_at_the_lag_and_above_it_is_right(name: str, data: st.DataObject, seed: int, extra: int) -> None:
    k = data.draw(KINDS[name])
    contents = given_for(name, k, seed)
    apart = lay_out(name, k, seed, contents)
    expected = results(apart, reference(apart)[0])
    for (read, written), lag in lags_of(name, k, contents).items():
        size = element(name, read)
        near = overlaid(apart, read, written, -(-(lag + extra) // size) * size)
        regions, _ = reference(near)
        assert results(near, regions) == expected, f"the reference, {read} -> {written}, lag {lag}"
        actual = run_c(near)
        assert results(near, actual) == expected, f"C, {read} -> {written}, lag {lag}"
        assert all(np.array_equal(a, e) for a, e in zip(actual, regions, strict=True)), "a byte beside the output was written"


def test_no_other_kind_shares_bytes() -> None:
    ones = {kind: {s.name: 1 for s in kind.scalars} for name, kind in kinds().items() if name not in KINDS}
    assert [kind.name for kind, k in ones.items() if lags(kind, k)] == []


# ---- no lag is larger than it must be -----------------------------------------------------------------------------------

WINDOW = {"h": 6, "w": 5, "p": 6, "q": 5, "r": 3, "s": 3, "sh": 1, "sw": 1, "pt": 1, "pl": 1}
DILATED = WINDOW | {"dh": 1, "dw": 1}
OUTPUT = {"zy": 0, "lo": -128, "hi": 127, "rounding": 0}
ERROR = {"mult": 2**30, "skip_mult": 0, "shift": 42, "skip_shift": 0, "lo": 0, "hi": 0, "has_skip": 0, "has_mask": 0}
WIDE = ERROR | {"shift": 52, "has_bits": 0}
PLANES = {"ws": 1, "bf": 0, "zx": 0}
DENSE = test_copy.scalars(xn=40, yn=40, d3=30, x3=1, y3=1)

TIGHT: Mapping[tuple[str, str], tuple[Scalars, int]] = {
    ("conv2d_fwd_s8", "x"): (DILATED | PLANES | OUTPUT | {"i": 4, "it": 0, "o": 4, "g": 1}, 5 * 4),
    ("dwconv2d_fwd_s8", "x"): (DILATED | PLANES | OUTPUT | {"w": 40, "q": 40, "i": 4, "ot": 0, "o": 4, "m": 1}, 40 * 4),
    ("linear_fwd_s8", "x"): (PLANES | OUTPUT | {"n": 3, "i": 8, "it": 0, "o": 8}, 8),
    ("linear_fwd_s32", "x"): (PLANES | {"n": 3, "i": 16, "it": 0, "o": 8}, 32),
    ("avgpool_fwd_s8", "x"): (WINDOW | {"c": 4, "lo": -128, "hi": 127}, 5 * 4),
    ("maxpool_fwd_s8", "x"): (WINDOW | {"c": 4, "lo": -128, "hi": 127}, 5 * 4),
    ("softmax_fwd_s8", "x"): ({"n": 2, "c": 9, "mult": 2**30, "shift": 24, "diff_min": -128}, 9),
    ("resize_fwd_s8", "x"): ({"h": 4, "w": 6, "c": 4, "p": 8, "q": 12}, 12 * 4),
    ("copy_s8", "x"): (DENSE | {"yo": 5}, 1),
    ("conv2d_bwd_x_s8", "dy"): (DILATED | WIDE | {"i": 4, "it": 0, "o": 4, "g": 1, "ws": 1}, 5 * 4),
    ("dwconv2d_bwd_x_s8", "dy"): (DILATED | WIDE | {"i": 4, "ot": 0, "o": 4, "m": 1, "ws": 1}, 5 * 4),
    ("linear_bwd_x_s8", "dy"): (WIDE | {"n": 3, "i": 8, "it": 0, "o": 8, "ws": 1}, 8),
    ("avgpool_bwd_x_s8", "dy"): (WINDOW | WIDE | {"c": 4, "shift": 48}, 5 * 4),
    ("maxpool_bwd_x_s8", "dy"): (WINDOW | ERROR | {"c": 4}, 5 * 4),
    ("maxpool_bwd_x_s8", "x"): (WINDOW | ERROR | {"c": 4}, 5 * 4),
    ("resize_bwd_x_s8", "dy"): (ERROR | {"has_bits": 0, "h": 8, "w": 6, "c": 4, "p": 4, "q": 3}, 6 * 4),
}
"""Of every pair whose lag can be above 0: an example, and the bytes of one output row (of one element for a copy)."""


@pytest.mark.parametrize(("name", "read"), sorted(TIGHT))
def test_one_row_closer_is_wrong(name: str, read: str) -> None:
    k, row = TIGHT[name, read]
    (written,) = {w for r, w in lags_of(name, k, given_for(name, k, 0)) if r == read}
    contents = dict(given_for(name, k, 0) or {}) | {r: np.zeros(1, DTYPES["mg_exponent"]) for r in ("ry", "rx")}
    lag = lags_of(name, k, given_for(name, k, 0))[read, written]
    assert lag >= row

    def differs(distance: int, seed: int) -> bool:
        layout = overlaid(lay_out(name, k, seed, contents), read, written, distance)
        return results(layout, run_c(layout)) != results(layout, reference(layout)[0])

    assert any(differs(lag - row, seed) for seed in range(30))
    assert not any(differs(lag, seed) for seed in range(30))


@often
@given(data=st.data(), name=st.sampled_from(sorted(KINDS)), seed=st.integers(0, 2**32 - 1))
def test_every_other_lag_is_0(data: st.DataObject, name: str, seed: int) -> None:
    k = data.draw(KINDS[name])
    for (read, _), lag in lags_of(name, k, given_for(name, k, seed)).items():
        assert lag == 0 or (name, read) in TIGHT


def rows_read(k: Scalars) -> Iterator[tuple[int, int]]:
    """(p, h) of every output row and input row that meet in a tap."""
    for r in range(k["r"]):
        for p, h in zip(*tap(k["h"], k["p"], k["sh"], r * k.get("dh", 1) - k["pt"]), strict=True):
            yield int(p), int(h)


def lag_by_rows(pairs: list[tuple[int, int]], long: int, wide: int) -> int:
    """(output row, input row that it reads): before a byte of output row y is written, what y and later rows read must be whole."""
    ends = ((y + 1) * long - x * wide for y, _ in pairs for later, x in pairs if later >= y)
    return max(ends, default=0)


@often
@given(k=test_dwconv2d.shape().flatmap(lambda k: st.just(k | {"has_skip": 0, "has_mask": 0})))
def test_windows_equal_a_walk_over_all_rows(k: Scalars) -> None:
    x, y = k["w"] * k["i"], k["q"] * k["o"]
    there = sorted(rows_read(k))
    assert lags(kinds()["dwconv2d_fwd_s8"], k)["x", "y"] == max(0, lag_by_rows(there, y, x))
    back = sorted((h, p) for p, h in there)
    assert lags(kinds()["dwconv2d_bwd_x_s8"], k)["dy", "dx"] == max(0, lag_by_rows(back, x, y))


@often
@given(k=test_pool.shape().flatmap(lambda k: st.just(k | {"has_skip": 0, "has_mask": 0})))
def test_a_maximum_reads_the_whole_window(k: Scalars) -> None:
    meet = list(rows_read(k))
    around = sorted({(h, other) for p, h in meet for q, other in meet if p == q})
    row = k["w"] * k["c"]
    assert lags(kinds()["maxpool_bwd_x_s8"], k)["x", "dx"] == max(0, lag_by_rows(around, row, row))


@often
@given(k=test_copy.ascending())
def test_a_copy_equals_a_walk_over_its_elements(k: Scalars) -> None:
    """An element of y may reach the place that the next element of x is read from, not beyond."""
    x, y = test_copy.places(k, "x"), test_copy.places(k, "y")
    ahead: Any = (y - x).max()
    assert lags(kinds()["copy_s8"], k)["x", "y"] == max(0, ahead)
