"""The reference's forward kernels against TensorFlow Lite's own interpreter, bit for bit, on models of one op with random contents."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest
from tflite_micro import runtime

from helpers.tflite_builder import ModelBuilder
from mcugrad.graph.types import Activation, Quant
from mcugrad.lower import quant
from mcugrad.plan.opsdef import kinds
from mcugrad.ref.fixed import Array
from mcugrad.ref.memory import DTYPES
from mcugrad.ref.table import KERNELS

Rng = np.random.Generator
SEEDS = range(12)
ACTIVATIONS = tuple(Activation)


def oracle(model: bytes, *inputs: Array) -> Array:
    interpreter = runtime.Interpreter.from_bytes(model, arena_size=1 << 20)
    for index, x in enumerate(inputs):
        interpreter.set_input(x, index)
    interpreter.invoke()
    out: npt.NDArray[np.int8] = interpreter.get_output(0).copy()
    return out


def run(name: str, scalars: Mapping[str, int], **given: Array) -> Array:
    """The output y of one reference kernel; references that are not given are empty or outputs."""
    counts = kinds()[name].counts(scalars)
    arrays = {r.name: np.zeros(counts[r.name], DTYPES[r.type]) for r in kinds()[name].refs}
    for field, data in given.items():
        arrays[field][:] = data.reshape(-1)
    KERNELS[name](scalars, arrays)
    return arrays["y"]


def pick(rng: Rng, *choices: int) -> int:
    return int(rng.choice(choices))


def a_quant(rng: Rng, low: float = 0.002, high: float = 0.3) -> Quant:
    scale = float(np.float32(np.exp(rng.uniform(np.log(low), np.log(high)))))
    return Quant((scale,), pick(rng, -128, 127, 0, int(rng.integers(-128, 128))))


def int8(rng: Rng, *shape: int) -> npt.NDArray[np.int8]:
    return rng.integers(-128, 128, shape).astype(np.int8)


def weights(rng: Rng, *shape: int) -> npt.NDArray[np.int8]:
    return rng.integers(-127, 128, shape).astype(np.int8)


def scales(rng: Rng, n: int) -> tuple[float, ...]:
    return tuple(float(s) for s in np.exp(rng.uniform(np.log(1e-4), np.log(2e-2), n)).astype(np.float32))


def same_pad(size: int, taps: int, stride: int, dilation: int, out: int) -> int:
    return max((out - 1) * stride + (taps - 1) * dilation + 1 - size, 0) // 2


def window(rng: Rng) -> tuple[dict[str, int], dict[str, object]]:
    """Scalars of a random window, and the same as options of the builder."""
    r, s, sh, sw = (int(v) for v in rng.integers(1, (4, 5, 3, 4)))
    dh, dw = (1, 1) if max(sh, sw) > 1 else (pick(rng, 1, 2), pick(rng, 1, 2))
    k = {"r": r, "s": s, "sh": sh, "sw": sw, "dh": dh, "dw": dw}
    padding = ("SAME", "VALID")[pick(rng, 0, 1)]
    return k, {"stride": (sh, sw), "dilation": (dh, dw), "padding": padding}


def place(k: dict[str, int], shape: tuple[int, ...], padding: object) -> None:
    """Output size and padding, from what the builder made of it."""
    k["p"], k["q"] = shape[1], shape[2]
    same = padding == "SAME"
    k["pt"] = same_pad(k["h"], k["r"], k["sh"], k.get("dh", 1), k["p"]) if same else 0
    k["pl"] = same_pad(k["w"], k["s"], k["sw"], k.get("dw", 1), k["q"]) if same else 0


def head(x: Quant, y: Quant, activation: Activation) -> dict[str, int]:
    lo, hi = quant.activation_range(activation, y.scale[0], y.zero_point)
    return {"ws": 1, "bf": 0, "zx": x.zero_point, "zy": y.zero_point, "lo": lo, "hi": hi}


@pytest.mark.parametrize("seed", SEEDS)
def test_conv2d(seed: int) -> None:
    rng = np.random.default_rng(seed)
    k, options = window(rng)
    k |= {"h": pick(rng, 9, 10, 12), "w": pick(rng, 9, 11, 13), "i": pick(rng, 1, 3, 8), "o": pick(rng, 1, 5, 16)}
    activation = ACTIVATIONS[seed % 4]
    x_quant, y_quant, w_scale = a_quant(rng), a_quant(rng), scales(rng, k["o"] if seed % 3 else 1)
    x, w, b = int8(rng, 1, k["h"], k["w"], k["i"]), weights(rng, k["o"], k["r"], k["s"], k["i"]), rng.integers(-9999, 9999, k["o"])
    m = ModelBuilder()
    xi = m.tensor("x", x.shape, quant=x_quant)
    yi = m.conv2d(xi, w, w_scale, b if seed % 5 else None, y_quant, activation=activation, **options)
    place(k, m.shape(yi), options["padding"])
    rq = np.resize(quant.conv_requant(x_quant.scale[0], w_scale, y_quant.scale[0]), k["o"])
    y = run("conv2d_fwd_s8", k | head(x_quant, y_quant, activation) | {"it": 0}, x=x, wf=w, b=b if seed % 5 else 0 * b, rq=rq)
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


@pytest.mark.parametrize("seed", SEEDS)
def test_avgpool(seed: int) -> None:
    rng = np.random.default_rng(300 + seed)
    k, options = window(rng)
    k |= {"h": pick(rng, 4, 5, 8), "w": pick(rng, 5, 7), "c": pick(rng, 1, 3, 8)}
    del options["dilation"], k["dh"], k["dw"]
    activation = ACTIVATIONS[seed % 4]
    x_quant, x = a_quant(rng), int8(rng, 1, k["h"], k["w"], k["c"])
    m = ModelBuilder()
    xi = m.tensor("x", x.shape, quant=x_quant)
    yi = m.avgpool(xi, (k["r"], k["s"]), activation=activation, **options)
    place(k, m.shape(yi), options["padding"])
    lo, hi = quant.activation_range(activation, x_quant.scale[0], x_quant.zero_point)
    y = run("avgpool_fwd_s8", k | {"lo": lo, "hi": hi}, x=x)
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
    k = {"mult": p.mult, "bias": p.bias, "h": h, "w": w, "c": c, "shift": p.shift, "zy": y_quant.zero_point, "lo": -128, "hi": 127}
    assert np.array_equal(run("mean_fwd_s8", k, x=x), oracle(m.finish([xi], [yi]), x).reshape(-1))


@pytest.mark.parametrize("seed", SEEDS)
def test_add(seed: int) -> None:
    rng = np.random.default_rng(500 + seed)
    activation = ACTIVATIONS[seed % 4]
    a_q, b_q, y_q = a_quant(rng), a_quant(rng), a_quant(rng)
    a, b = int8(rng, 1, 4, 5, 6), int8(rng, 1, 4, 5, 6)
    m = ModelBuilder()
    ai, bi = m.tensor("a", a.shape, quant=a_q), m.tensor("b", b.shape, quant=b_q)
    yi = m.add(ai, bi, y_q, activation=activation)
    p = quant.add_params(a_q.scale[0], b_q.scale[0], y_q.scale[0])
    lo, hi = quant.activation_range(activation, y_q.scale[0], y_q.zero_point)
    k = {"n": a.size, "am": p.am, "bm": p.bm, "ym": p.ym, "ash": p.ash, "bsh": p.bsh, "ysh": p.ysh}
    k |= {"za": a_q.zero_point, "zb": b_q.zero_point, "zy": y_q.zero_point, "lo": lo, "hi": hi}
    assert np.array_equal(run("add_fwd_s8", k, a=a, b=b), oracle(m.finish([ai, bi], [yi]), a, b).reshape(-1))


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
