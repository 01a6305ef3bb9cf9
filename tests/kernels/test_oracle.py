"""The reference's layers, pools and softmax against TensorFlow Lite Micro's interpreter, bit for bit, on models of one op."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import ACTIVATIONS, SEEDS, a_quant, head, int8, oracle, pick, place, run, scales, weights, window

from helpers.tflite_builder import ModelBuilder
from mcugrad.graph.types import Activation, Quant
from mcugrad.lower import quant


@pytest.mark.parametrize("g", [1, 2, 3])
@pytest.mark.parametrize("seed", SEEDS)
def test_conv2d(seed: int, g: int) -> None:
    rng = np.random.default_rng(seed)
    k, options = window(rng)
    k |= {"h": pick(rng, 9, 10, 12), "w": pick(rng, 9, 11, 13), "i": pick(rng, 1, 3, 8), "o": pick(rng, 1, 5, 16) * g}
    activation = ACTIVATIONS[seed % 4]
    x_quant, y_quant, w_scale = a_quant(rng), a_quant(rng), scales(rng, k["o"] if seed % 3 else 1)
    x, w, b = int8(rng, 1, k["h"], k["w"], k["i"] * g), weights(rng, k["o"], k["r"], k["s"], k["i"]), rng.integers(-9999, 9999, k["o"])
    m = ModelBuilder()
    xi = m.tensor("x", x.shape, quant=x_quant)
    yi = m.conv2d(xi, w, w_scale, b if seed % 5 else None, y_quant, activation=activation, **options)
    place(k, m.shape(yi), options["padding"])
    rq = np.resize(quant.conv_requant(x_quant.scale[0], w_scale, y_quant.scale[0]), k["o"])
    y = run("conv2d_fwd_s8", k | head(x_quant, y_quant, activation) | {"it": 0, "g": g}, x=x, wf=w, b=b if seed % 5 else 0 * b, rq=rq)
    assert np.array_equal(y, oracle(m.finish([xi], [yi]), x).reshape(-1))


@pytest.mark.parametrize("seed", SEEDS)
def test_dwconv2d(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    k, options = window(rng)
    k |= {"h": pick(rng, 9, 10, 12), "w": pick(rng, 9, 11, 13), "i": pick(rng, 1, 3, 8), "m": 1 + seed % 3}
    k["o"] = k["i"] * k["m"]
    activation = ACTIVATIONS[seed % 4]
    x_quant, y_quant, w_scale = a_quant(rng), a_quant(rng), scales(rng, k["o"])
    x, w, b = int8(rng, 1, k["h"], k["w"], k["i"]), weights(rng, 1, k["r"], k["s"], k["o"]), rng.integers(-9999, 9999, k["o"])
    m = ModelBuilder()
    xi = m.tensor("x", x.shape, quant=x_quant)
    yi = m.dwconv2d(xi, w, w_scale, b, y_quant, activation=activation, **options)
    place(k, m.shape(yi), options["padding"])
    rq = quant.conv_requant(x_quant.scale[0], w_scale, y_quant.scale[0])
    y = run("dwconv2d_fwd_s8", k | head(x_quant, y_quant, activation) | {"ot": 0}, x=x, wf=np.moveaxis(w[0], 2, 0), b=b, rq=rq)
    assert np.array_equal(y, oracle(m.finish([xi], [yi]), x).reshape(-1))


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_linear(seed: int, per_channel: bool) -> None:
    rng = np.random.default_rng(200 + seed)
    k = {"n": 1 + seed % 3, "i": pick(rng, 1, 7, 33, 200), "o": pick(rng, 2, 10, 17)}
    activation = ACTIVATIONS[seed % 4]
    x_quant, y_quant, w_scale = a_quant(rng), a_quant(rng), scales(rng, k["o"] if per_channel else 1)
    x, w, b = int8(rng, k["n"], k["i"]), weights(rng, k["o"], k["i"]), rng.integers(-9999, 9999, k["o"])
    m = ModelBuilder()
    xi = m.tensor("x", x.shape, quant=x_quant)
    yi = m.linear(xi, w, w_scale, b, y_quant, activation=activation)
    rq = np.resize(quant.linear_requant(x_quant.scale[0], w_scale, y_quant.scale[0]), k["o"])
    y = run("linear_fwd_s8", k | head(x_quant, y_quant, activation) | {"it": 0}, x=x, wf=w, b=b, rq=rq)
    assert np.array_equal(y, oracle(m.finish([xi], [yi]), x).reshape(-1))


@pytest.mark.parametrize("kind", ["avgpool", "maxpool"])
@pytest.mark.parametrize("seed", SEEDS)
def test_pools(seed: int, kind: str) -> None:
    rng = np.random.default_rng(300 + seed)
    k, options = window(rng)
    k |= {"h": pick(rng, 4, 5, 8), "w": pick(rng, 5, 7), "c": pick(rng, 1, 3, 8)}
    del options["dilation"], k["dh"], k["dw"]
    activation = ACTIVATIONS[seed % 4]
    x_quant, x = a_quant(rng), int8(rng, 1, k["h"], k["w"], k["c"])
    m = ModelBuilder()
    xi = m.tensor("x", x.shape, quant=x_quant)
    yi = getattr(m, kind)(xi, (k["r"], k["s"]), activation=activation, **options)
    place(k, m.shape(yi), options["padding"])
    lo, hi = quant.activation_range(activation, x_quant.scale[0], x_quant.zero_point)
    y = run(f"{kind}_fwd_s8", k | {"lo": lo, "hi": hi}, x=x)
    assert np.array_equal(y, oracle(m.finish([xi], [yi]), x).reshape(-1))


@pytest.mark.parametrize("keep_dims", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_mean(seed: int, keep_dims: bool) -> None:
    rng = np.random.default_rng(400 + seed)
    h, w, c = pick(rng, 1, 3, 7, 25), pick(rng, 1, 5, 8), pick(rng, 1, 3, 64)
    x_quant, y_quant = a_quant(rng), a_quant(rng)
    x = int8(rng, 1, h, w, c)
    m = ModelBuilder()
    xi = m.tensor("x", x.shape, quant=x_quant)
    yi = m.mean(xi, y_quant, keep_dims=keep_dims)
    p = quant.mean_params(x_quant.scale[0], x_quant.zero_point, y_quant.scale[0], h * w)
    k = {"mult": p.mult, "bias": p.bias, "h": h, "w": w, "c": c, "shift": p.shift, "zy": y_quant.zero_point}
    k |= {"lo": -128, "hi": 127, "rounding": 0}
    assert np.array_equal(run("mean_fwd_s8", k, x=x), oracle(m.finish([xi], [yi]), x).reshape(-1))


@pytest.mark.parametrize("seed", SEEDS)
def test_softmax(seed: int) -> None:
    rng = np.random.default_rng(600 + seed)
    n, c = pick(rng, 1, 3), pick(rng, 1, 2, 10, 100)
    x_quant = a_quant(rng, 0.001, 2.0) if seed else Quant((20.0,))
    beta = float(np.float32((1.0, 0.5, 3.0)[seed % 3]))
    x = int8(rng, n, c) if seed % 4 else np.full((n, c), 5, np.int8)
    m = ModelBuilder()
    xi = m.tensor("x", x.shape, quant=x_quant)
    yi = m.softmax(xi, beta=beta)
    p = quant.softmax_params(beta, x_quant.scale[0])
    k = {"n": n, "c": c, "mult": p.mult, "shift": p.shift, "diff_min": p.diff_min}
    assert np.array_equal(run("softmax_fwd_s8", k, x=x), oracle(m.finish([xi], [yi]), x).reshape(-1))


def test_the_oracle_can_disagree() -> None:
    """A guard of this file: one unit in a multiplier's last bits must show."""
    seed, changed = 3, 0
    rng = np.random.default_rng(seed)
    x_quant, y_quant, w_scale = Quant((0.05,), -3), Quant((0.04,), 5), (0.01,)
    x, w = int8(rng, 64, 40), weights(rng, 10, 40)
    m = ModelBuilder()
    xi = m.tensor("x", x.shape, quant=x_quant)
    yi = m.linear(xi, w, w_scale, np.zeros(10, np.int32), y_quant)
    rq = np.resize(quant.linear_requant(0.05, w_scale, 0.04), 10)
    rq["mult"] += 1 << 18
    y = run(
        "linear_fwd_s8", {"n": 64, "i": 40, "o": 10, "it": 0} | head(x_quant, y_quant, Activation.NONE), x=x, wf=w, b=0 * rq["mult"], rq=rq
    )
    changed = int((y != oracle(m.finish([xi], [yi]), x).reshape(-1)).sum())
    assert 0 < changed < y.size // 4
