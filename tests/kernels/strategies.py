"""Hypothesis strategies for the scalars of step records, and ``sweep``, which turns one into tests of C against the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from harness import check
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

Draw = st.DrawFn
Scalars = dict[str, Any]
Array = npt.NDArray[np.generic]
Contents = Callable[[Scalars, np.random.Generator], Mapping[str, Array]]
Test = Callable[[], None]

EXAMPLES, MANY = 150, 2000

channels = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33])
zero_points = st.sampled_from([-128, 127, 0]) | st.integers(-128, 127)
positive_q31 = st.sampled_from([0, 1, 2**30, 2**31 - 1]) | st.integers(2**30, 2**31 - 1)
fraction_bits = st.sampled_from([0, 8, 16]) | st.integers(0, 16)
low_bits = st.sampled_from([0, 0, 7]) | st.integers(0, 7)
"""af of an update: fraction bits below the weight."""
factors = st.tuples(positive_q31, st.integers(-12, 1) | st.integers(-31, 30))
"""(mult, shift) as mg_requant has them."""
lengths = channels | st.integers(1, 300)
limits = st.sampled_from([(-128, 127)] * 4 + [(-128, 5), (-7, 127), (0, 0), (20, -20)])


def sweep(name: str, scalars: st.SearchStrategy[Scalars], contents: Contents | None = None) -> tuple[Test, Test]:
    """Two tests of a step kind, a fast one and one of ``make test-all``. ``contents`` fixes what lies behind some references."""

    def body(k: Scalars, seed: int) -> None:
        check(name, k, seed, contents(k, np.random.default_rng(seed)) if contents is not None else None)

    def test(examples: int) -> Test:
        def run(k: Scalars, seed: int) -> None:
            body(k, seed)

        quiet = settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
        return quiet(given(k=scalars, seed=st.integers(0, 2**32 - 1))(run))

    return test(EXAMPLES), pytest.mark.slow(test(MANY))


def axis(draw: Draw, taps: int, stride: int, dilation: int) -> tuple[int, int, int]:
    """(size, out, pad) of one axis: mostly as a model has them, sometimes any."""
    size, pad = draw(st.integers(1, 8)), draw(st.integers(0, 2))
    natural = (size + pad + draw(st.integers(0, 2)) - (taps - 1) * dilation - 1) // stride + 1
    return size, natural if natural >= 1 and draw(st.integers(0, 9)) else draw(st.integers(1, 5)), pad


def window(draw: Draw) -> Scalars:
    """H W P Q R S, strides, dilations and padding of a convolution."""
    r, s = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    sh, sw, dh, dw = (draw(st.integers(1, top)) for top in (3, 3, 2, 2))
    h, p, pt = axis(draw, r, sh, dh)
    w, q, pl = axis(draw, s, sw, dw)
    return {"h": h, "w": w, "p": p, "q": q, "r": r, "s": s, "sh": sh, "sw": sw, "dh": dh, "dw": dw, "pt": pt, "pl": pl}


def net_window(draw: Draw) -> Scalars:
    """H W P Q R S … as nets have them: a square kernel of 1, 3, 5 or 7, padded to its middle, over a map that may be wide."""
    r, stride = draw(st.sampled_from([1, 3, 5, 7])), draw(st.integers(1, 2))
    h, w = draw(st.integers(1, 6)), draw(st.integers(1, 40))
    same = {"r": r, "s": r, "sh": stride, "sw": stride, "dh": 1, "dw": 1, "pt": r // 2, "pl": r // 2}
    return same | {"h": h, "w": w, "p": -(-h // stride), "q": -(-w // stride)}


def part(draw: Draw, whole: int) -> int:
    """None, some or all of a count."""
    return draw(st.sampled_from([0, whole]) | st.integers(0, whole))


def output(draw: Draw) -> Scalars:
    lo, hi = draw(limits)
    return {"zy": draw(zero_points), "lo": lo, "hi": hi, "rounding": draw(st.integers(0, 1))}


def pair(draw: Draw) -> Scalars:
    """P and C of two operands, and how the second is spread."""
    return {"p": draw(channels), "c": draw(channels), "bp": draw(st.integers(0, 1)), "bc": draw(st.integers(0, 1))}


def planes(draw: Draw) -> Scalars:
    return {"ws": draw(st.integers(1, 2)), "bf": draw(fraction_bits), "zx": draw(zero_points)}


def scales(draw: Draw) -> Scalars:
    """The scalars of SPEC.md 3.5 without the clamp mask, mostly such that errors land around ±127."""
    far = st.sampled_from([-32768, -100, 0, 1, 62, 63, 100, 32767])
    edges = st.sampled_from([-32768, -129, -128, -1, 0, 1, 127, 128, 32767])
    return {
        "mult": draw(positive_q31),
        "skip_mult": draw(positive_q31),
        "shift": draw(st.integers(30, 50) | st.integers(34, 44) | far),
        "skip_shift": draw(st.integers(8, 30) | st.integers(8, 24) | far),
        "lo": draw(edges),
        "hi": draw(edges),
        "has_skip": draw(st.integers(0, 1)),
    }


def epilogue(draw: Draw) -> Scalars:
    """The scalars of SPEC.md 3.5: no mask, one from x, or one of bits."""
    has_mask, has_bits = draw(st.sampled_from([(0, 0), (1, 0), (0, 1)]))
    return scales(draw) | {"has_mask": has_mask, "has_bits": has_bits}


def epilogue_of_own_x(draw: Draw) -> Scalars:
    """The same of a kind that reads x for its error anyway, and so has no bits."""
    return scales(draw) | {"has_mask": draw(st.integers(0, 1))}
