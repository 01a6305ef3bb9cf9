"""The reference's elementwise kernels against TensorFlow Lite Micro's interpreter, bit for bit, on models of one op."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from oracle import ACTIVATIONS, SEEDS, Rng, a_quant, int8, oracle, pick, run

from helpers.tflite_builder import ModelBuilder
from mcugrad.graph.types import Activation, Function, Quant, Unary
from mcugrad.lower import lut, quant
from mcugrad.ref.fixed import Array

A_SHAPE = (1, 4, 5, 6)
SPREADS = {
    "equal": ((1, 4, 5, 6), {"p": 20, "c": 6, "bp": 1, "bc": 1}),
    "one": ((1,), {"p": 20, "c": 6, "bp": 0, "bc": 0}),
    "channels": ((1, 1, 1, 6), {"p": 20, "c": 6, "bp": 0, "bc": 1}),
    "vector": ((6,), {"p": 20, "c": 6, "bp": 0, "bc": 1}),
    "places": ((1, 4, 5, 1), {"p": 20, "c": 6, "bp": 1, "bc": 0}),
    "rows": ((1, 1, 5, 6), {"p": 4, "c": 30, "bp": 0, "bc": 1}),
}
"""Shape of b -> how the record spreads it over a."""

Kernel = Callable[[dict[str, int], Quant, Quant, Quant, Array, Array], Array]
spreads = pytest.mark.parametrize("spread", SPREADS)
constants = pytest.mark.parametrize("constant", [False, True], ids=["input", "constant"])
few = pytest.mark.parametrize("seed", range(6))


def clamps(y: Quant, activation: Activation) -> dict[str, int]:
    lo, hi = quant.activation_range(activation, y.scale[0], y.zero_point)
    return {"zy": y.zero_point, "lo": lo, "hi": hi, "rounding": 0}


def sums(k: dict[str, int], aq: Quant, bq: Quant, yq: Quant, a: Array, b: Array) -> Array:
    p = quant.add_params(aq.scale[0], bq.scale[0], yq.scale[0])
    k |= {"am": p.am, "bm": p.bm, "ym": p.ym, "ash": p.ash, "bsh": p.bsh, "ysh": p.ysh, "za": aq.zero_point, "zb": bq.zero_point}
    return run("add_fwd_s8", k, a=a, b=b)


def products(k: dict[str, int], aq: Quant, bq: Quant, yq: Quant, a: Array, b: Array) -> Array:
    mult, shift = quant.mul_params(aq.scale[0], bq.scale[0], yq.scale[0])
    return run("mul_fwd_s8", k | {"mult": mult, "shift": shift, "za": aq.zero_point, "zb": bq.zero_point}, a=a, b=b)


ARITHMETIC: dict[str, tuple[Kernel, dict[str, int]]] = {
    "add": (sums, {"asign": 1, "bsign": 1}),
    "sub": (sums, {"asign": 1, "bsign": -1}),
    "mul": (products, {}),
}


def operand(m: ModelBuilder, b: Array, q: Quant, constant: bool) -> int:
    return m.tensor("b", b.shape, quant=q, data=b if constant else None)


def both(a: Array, b: Array, constant: bool) -> tuple[Array, ...]:
    return (a,) if constant else (a, b)


@constants
@spreads
@pytest.mark.parametrize("op", ARITHMETIC)
@few
def test_arithmetic(op: str, spread: str, constant: bool, seed: int) -> None:
    rng = np.random.default_rng(500 + seed)
    activation = ACTIVATIONS[seed % 4]
    (shape, k), (kernel, signs) = SPREADS[spread], ARITHMETIC[op]
    aq, bq, yq = a_quant(rng), a_quant(rng), a_quant(rng)
    a, b = int8(rng, *A_SHAPE), int8(rng, *shape)
    m = ModelBuilder()
    ai, bi = m.tensor("a", a.shape, quant=aq), operand(m, b, bq, constant)
    yi = getattr(m, op)(ai, bi, yq, activation=activation)
    model = m.finish([ai] if constant else [ai, bi], [yi])
    got = kernel(k | signs | clamps(yq, activation), aq, bq, yq, a, b)
    assert np.array_equal(got, oracle(model, *both(a, b, constant)).reshape(-1))


@spreads
@few
def test_a_spread_first_operand_of_a_difference(spread: str, seed: int) -> None:
    """b - a with b spread: the record has the operands exchanged and the signs with them."""
    rng = np.random.default_rng(540 + seed)
    shape, k = SPREADS[spread]
    aq, bq, yq = a_quant(rng), a_quant(rng), a_quant(rng)
    a, b = int8(rng, *A_SHAPE), int8(rng, *shape)
    m = ModelBuilder()
    bi, ai = m.tensor("b", b.shape, quant=bq), m.tensor("a", a.shape, quant=aq)
    model = m.finish([bi, ai], [m.sub(bi, ai, yq)])
    got = sums(k | {"asign": -1, "bsign": 1} | clamps(yq, Activation.NONE), aq, bq, yq, a, b)
    assert np.array_equal(got, oracle(model, b, a).reshape(-1))


@constants
@spreads
@pytest.mark.parametrize("op", ["minimum", "maximum"])
def test_minmax(op: str, spread: str, constant: bool) -> None:
    rng = np.random.default_rng(560)
    shape, k = SPREADS[spread]
    q, a, b = a_quant(rng), int8(rng, *A_SHAPE), int8(rng, *shape)
    m = ModelBuilder()
    ai, bi = m.tensor("a", a.shape, quant=q), operand(m, b, q, constant)
    model = m.finish([ai] if constant else [ai, bi], [getattr(m, op)(ai, bi)])
    got = run("minmax_fwd_s8", k | {"max": int(op == "maximum")}, a=a, b=b)
    assert np.array_equal(got, oracle(model, *both(a, b, constant)).reshape(-1))


@pytest.mark.parametrize("shape", [(6,), (1, 1, 6)])
@pytest.mark.parametrize("seed", SEEDS)
def test_prelu(seed: int, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(580 + seed)
    xq, aq, yq = a_quant(rng), a_quant(rng), a_quant(rng)
    x, alpha = int8(rng, *A_SHAPE), int8(rng, *shape)
    m = ModelBuilder()
    xi = m.tensor("x", x.shape, quant=xq)
    model = m.finish([xi], [m.prelu(xi, alpha, aq, yq)])
    p = quant.prelu_params(xq.scale[0], aq.scale[0], yq.scale[0])
    k = {"p": 20, "c": 6, "zx": xq.zero_point, "za": aq.zero_point, "zy": yq.zero_point, "rounding": 0}
    got = run("prelu_fwd_s8", k | {"pm": p.pm, "psh": p.psh, "nm": p.nm, "nsh": p.nsh}, x=x, alpha=alpha)
    assert np.array_equal(got, oracle(model, x).reshape(-1))


OUTPUT = {Function.LOGISTIC: Quant((1 / 256,), -128), Function.TANH: Quant((1 / 128,), 0)}


def unary_case(rng: Rng, function: Function) -> tuple[Unary, Quant, Quant]:
    x, y = a_quant(rng), a_quant(rng, 0.01)
    alpha = float(np.float32(rng.choice([0.01, 0.3]))) if function is Function.LEAKY_RELU else 0.0
    return Unary(function, alpha), x, x if function is Function.RELU6 else OUTPUT.get(function, y)


@pytest.mark.parametrize("function", [f for f in Function if f is not Function.RELU_N1_1])
@few
def test_functions_by_table(function: Function, seed: int) -> None:
    """tests/unit/test_lut.py tries more scales; here the table goes through the kernel. The interpreter has no RELU_N1_TO_1."""
    rng = np.random.default_rng(620 + seed)
    unary, xq, yq = unary_case(rng, function)
    x = int8(rng, 1, pick(rng, 1, 7), 33)
    m = ModelBuilder()
    xi = m.tensor("x", x.shape, quant=xq)
    model = m.finish([xi], [m.unary(xi, unary, yq)])
    assert np.array_equal(run("lut_fwd_s8", {"n": x.size}, x=x, table=lut.table(unary, xq, yq)), oracle(model, x).reshape(-1))
