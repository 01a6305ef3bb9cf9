"""An update that gets only the trained channels of x, as a copy has saved them, changes the weights as one that gets all of x."""

from __future__ import annotations

import numpy as np
import pytest
import test_conv2d
import test_dwconv2d
import test_linear
from harness import Array, check, content
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import Scalars

from mcugrad.plan.opsdef import kinds


def same_update(name: str, k: Scalars, fewer: Scalars, keep: np.ndarray, seed: int) -> None:
    """``keep``: which elements of x the step with the scalars ``k | fewer`` gets."""
    rng = np.random.default_rng(seed)
    kind = kinds()[name]
    contents: dict[str, Array] = {r.name: content(rng, r.type, n) for r, n in zip(kind.refs, kind.counts(k).values(), strict=True)}
    full = check(name, k, seed, contents)["wt"]
    part = check(name, k | fewer, seed, contents | {"x": contents["x"][keep.reshape(-1)]})["wt"]
    assert np.array_equal(full, part)


quiet = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
rules = pytest.mark.parametrize("rule", ["q16", "sr8"])
seeds = st.integers(0, 2**32 - 1)


@rules
@quiet
@given(data=st.data(), seed=seeds)
def test_conv2d_of_the_first_channels_of_each_group(rule: str, data: st.DataObject, seed: int) -> None:
    k = data.draw({"q16": test_conv2d.q16, "sr8": test_conv2d.sr8}[rule]().filter(lambda k: k["it"] >= 1))
    keep = np.zeros((k["h"], k["w"], k["g"], k["i"]), bool)
    keep[..., : k["it"]] = True
    same_update(f"conv2d_upd_{rule}", k, {"i": k["it"]}, keep, seed)


@rules
@quiet
@given(data=st.data(), seed=seeds)
def test_dwconv2d_of_the_first_inputs(rule: str, data: st.DataObject, seed: int) -> None:
    k = data.draw({"q16": test_dwconv2d.q16, "sr8": test_dwconv2d.sr8}[rule]().filter(lambda k: k["ot"] >= 1))
    read = -(-k["ot"] // k["m"])
    keep = np.zeros((k["h"], k["w"], k["i"]), bool)
    keep[..., :read] = True
    same_update(f"dwconv2d_upd_{rule}", k, {"i": read}, keep, seed)


@rules
@quiet
@given(data=st.data(), seed=seeds)
def test_linear_of_the_first_inputs(rule: str, data: st.DataObject, seed: int) -> None:
    k = data.draw({"q16": test_linear.q16, "sr8": test_linear.sr8}[rule]().filter(lambda k: k["it"] >= 1))
    keep = np.zeros((k["n"], k["i"]), bool)
    keep[:, : k["it"]] = True
    same_update(f"linear_upd_{rule}", k, {"i": k["it"]}, keep, seed)
