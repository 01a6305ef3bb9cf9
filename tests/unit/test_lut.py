"""lower/lut.py: every code of every function against TensorFlow Lite Micro's own kernel, and the slopes against differences."""

from __future__ import annotations

import numpy as np
import pytest
from tflite_micro import runtime

from helpers.tflite_builder import ModelBuilder
from mcugrad.errors import ModelError
from mcugrad.graph.types import Function, Quant, Unary
from mcugrad.lower.lut import CODES, slopes, table

SEEDS = range(25)
RESCALING = (Function.RELU, Function.LEAKY_RELU, Function.HARD_SWISH, Function.REQUANTIZE)
FIXED = {Function.LOGISTIC: Quant((1 / 256,), -128), Function.TANH: Quant((1 / 128,), 0)}
ORACLE = tuple(f for f in Function if f is not Function.RELU_N1_1)
"""TensorFlow Lite Micro has no RELU_N1_TO_1 kernel: it exists only fused."""


def oracle(unary: Unary, x: Quant, y: Quant) -> np.ndarray:
    """The outputs of all 256 codes."""
    m = ModelBuilder()
    xi = m.tensor("x", (1, 256), quant=x)
    yi = m.unary(xi, unary, y)
    interpreter = runtime.Interpreter.from_bytes(m.finish([xi], [yi]), arena_size=1 << 16)
    interpreter.set_input(CODES.astype(np.int8)[None], 0)
    interpreter.invoke()
    return np.asarray(interpreter.get_output(0)).reshape(-1)


def random_quant(rng: np.random.Generator) -> Quant:
    scale = float(np.exp(rng.uniform(np.log(1e-3), np.log(0.5))).astype(np.float32))
    return Quant((scale,), int(rng.choice([-128, 127, 0, rng.integers(-128, 128)])))


def random_case(function: Function, seed: int) -> tuple[Unary, Quant, Quant]:
    """A function with an input, and an output that TensorFlow Lite accepts for it."""
    rng = np.random.default_rng(seed)
    alpha = float(np.float32(rng.choice([0.01, 0.1, 0.3, 1.5, -0.2])))
    x = random_quant(rng)
    if function is Function.RELU6:
        return Unary(function), x, x
    y = random_quant(rng)
    if function is Function.HARD_SWISH:
        y = Quant((max(y.scale[0], x.scale[0] / 100),), y.zero_point)
    return Unary(function, alpha if function is Function.LEAKY_RELU else 0.0), x, FIXED.get(function, y)


@pytest.mark.parametrize("function", ORACLE)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_code_equals_tensorflow_lite(function: Function, seed: int) -> None:
    unary, x, y = random_case(function, seed)
    got = table(unary, x, y)
    assert got.dtype == np.int8
    assert np.array_equal(got, oracle(unary, x, y))


@pytest.mark.parametrize("function", [Function.RELU, Function.REQUANTIZE])
def test_the_int8_ends_and_scale_ratios_above_one(function: Function) -> None:
    for x, y in (
        (Quant((0.5,), -128), Quant((0.001,), 127)),
        (Quant((0.001,), 127), Quant((0.5,), -128)),
        (Quant((3.0,), 0), Quant((1.0,), 0)),
    ):
        assert np.array_equal(table(Unary(function), x, y), oracle(Unary(function), x, y))


def test_relu_n1_to_1_clamps_in_the_output() -> None:
    x, y = Quant((0.25,), 3), Quant((0.5,), -1)
    t = table(Unary(Function.RELU_N1_1), x, y)
    assert t[CODES == 3 + 2] == -1 + 1
    assert (t[CODES >= 3 + 4] == 1).all()
    assert (t[CODES <= 3 - 4] == -3).all()


@pytest.mark.parametrize(
    ("function", "x", "y", "words"),
    [
        (Function.LOGISTIC, Quant((0.1,)), Quant((1 / 255,), -128), "logistic: the output has scale 0.00392157 and zero point -128"),
        (Function.LOGISTIC, Quant((0.1,)), Quant((1 / 256,), -127), "zero point -127, not 0.00390625 and -128"),
        (Function.TANH, Quant((0.1,)), Quant((1 / 128,), 1), "tanh"),
        (Function.HARD_SWISH, Quant((1.0,)), Quant((0.001,)), "hard_swish: the input's scale 1 is not below 128 output scales, 0.128"),
        (Function.REQUANTIZE, Quant((1e30,)), Quant((1e-3,)), "above the limit"),
    ],
)
def test_what_tensorflow_lite_has_no_kernel_for_is_refused(function: Function, x: Quant, y: Quant, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        table(Unary(function), x, y)


# ---- slopes -----------------------------------------------------------------------------------------------------------

X, Y = Quant((0.06,), 5), Quant((0.04,), -10)
REAL = {
    Function.LOGISTIC: lambda v: 1 / (1 + np.exp(-v)),
    Function.TANH: np.tanh,
    Function.HARD_SWISH: lambda v: v * np.clip(v + 3, 0, 6) / 6,
    Function.LEAKY_RELU: lambda v: np.where(v >= 0, v, 0.3 * v),
    Function.RELU: lambda v: np.maximum(v, 0),
    Function.RELU6: lambda v: np.clip(v, 0, 6),
    Function.RELU_N1_1: lambda v: np.clip(v, -1, 1),
    Function.REQUANTIZE: lambda v: v,
}


@pytest.mark.parametrize("function", list(Function))
def test_slopes_are_the_derivative(function: Function) -> None:
    """Central differences of the real function, away from its corners."""
    unary = Unary(function, 0.3 if function is Function.LEAKY_RELU else 0.0)
    codes, unit = slopes(unary, X, FIXED.get(function, Y))
    assert codes.dtype == np.int16
    assert abs(int(np.abs(codes).max()) - 16384) <= 1
    v, h = X.scale[0] * (CODES - X.zero_point), 1e-6
    want = (REAL[function](v + h) - REAL[function](v - h)) / (2 * h)
    smooth = np.ones(256, bool)
    for corner in (0, 1, -1, 3, -3, 6):
        smooth &= np.abs(v - corner) > X.scale[0]
    assert codes[smooth] * unit == pytest.approx(want[smooth], abs=unit)


def test_slopes_are_zero_at_a_bound_of_the_function() -> None:
    codes, _ = slopes(Unary(Function.RELU), X, X)
    assert (codes != 0).tolist() == (X.zero_point < CODES).tolist()
    codes, _ = slopes(Unary(Function.RELU6), X, X)
    assert (codes != 0).tolist() == ((X.zero_point < CODES) & (X.zero_point + 100 > CODES)).tolist()


def test_slopes_are_zero_where_a_small_input_rounds_to_the_bound() -> None:
    """0.04 is 0 in steps of 0.1: a fused RELU would mask it too."""
    x, y = Quant((0.01,), 0), Quant((0.1,), -128)
    codes, _ = slopes(Unary(Function.RELU), x, y)
    assert codes[CODES == 4][0] == 0
    assert codes[CODES == 6][0] == 16384


def test_slopes_pass_the_end_of_int8() -> None:
    """y reaches 127 long before x does."""
    y = Quant((0.01,), -128)
    for function in (Function.RELU, Function.RELU6, Function.REQUANTIZE):
        codes, _ = slopes(Unary(function), X, y)
        assert codes[CODES == 80][0] != 0
        assert table(Unary(function), X, y)[CODES == 80][0] == 127


def test_slopes_of_a_function_that_is_zero_everywhere() -> None:
    codes, unit = slopes(Unary(Function.RELU), Quant((0.1,), 127), Quant((0.1,), -128))
    assert not codes.any()
    assert unit > 0
