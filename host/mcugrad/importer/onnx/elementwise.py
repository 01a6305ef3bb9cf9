"""Nodes that compute element by element: Add, Sub, Mul, Div, Min, Max, Relu and its kin, Softmax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

import numpy as np
import numpy.typing as npt

from mcugrad.graph.types import Activation, Add, Function, MinMax, Mul, OpKind, Prelu, Quant, Softmax, Sub, Unary
from mcugrad.importer.onnx.build import INT8, State
from mcugrad.importer.onnx.file import Node
from mcugrad.importer.onnx.layers import taken_in
from mcugrad.importer.onnx.quantization import operand
from mcugrad.importer.onnx.values import Act, Const, Gate, Pending, QConst, Shape, Value, full, inverse, transposed

Reals = npt.NDArray[np.float64]

WITH_WEIGHTS = ("Conv", "Gemm", "MatMul", "QLinearConv", "QLinearMatMul", "QGemm")
SOFTMAX_QUANT = Quant((1 / 256,), -128)
FIXED_QUANTS = {Function.LOGISTIC: Quant((1 / 256,), -128), Function.TANH: Quant((1 / 128,), 0)}


def two(kind: OpKind) -> Callable[[State, Node], None]:
    """The reader of Add, Sub or Mul."""

    def read(state: State, node: Node) -> None:
        if isinstance(kind, Mul) and _hard_swish(state, node):
            return
        if not _into_layer(state, node, kind):
            state.values[node.outputs[0]] = two_of(state, node, kind, _side(state, node, 0), _side(state, node, 1))

    return read


def hard_sigmoid(state: State, node: Node) -> None:
    """Exporters write hard swish as x · HardSigmoid(x, 1/6, 1/2)."""
    if abs(node.number("alpha", 0.2) - 1 / 6) > 1e-4 or abs(node.number("beta", 0.5) - 0.5) > 1e-4:
        node.fail("has alpha and beta other than 1/6 and 1/2, those of hard swish", "use Sigmoid")
    state.values[node.outputs[0]] = Gate(node, state.real(node, 0))


def _hard_swish(state: State, node: Node) -> bool:
    for k in (0, 1):
        gate = state.value(node, k)
        if isinstance(gate, Gate):
            state.values[node.outputs[0]] = swish(state, node, gate, state.real(node, 1 - k))
            return True
    return False


def swish(state: State, node: Node, gate: Value, x: Act) -> Act | Pending:
    """x times its own hard sigmoid."""
    assert isinstance(gate, Gate)
    if x.tensor != gate.x.tensor or x.shape != gate.x.shape:
        gate.node.fail("is multiplied with another value than its input", "use Sigmoid")
    return function_of(state, node, Function.HARD_SWISH, x)


def _side(state: State, node: Node, k: int) -> Value:
    v = state.value(node, k)
    return v if isinstance(v, Const | QConst) else state.real(node, k)


def _into_layer(state: State, node: Node, kind: OpKind) -> bool:
    """A constant added to, subtracted from or multiplied with a layer's result, one number per channel: a part of it."""
    for k in (0, 1):
        if not isinstance(state.value(node, k), Pending) or (k == 1 and isinstance(kind, Sub)):
            continue
        v, other = taken_in(state, node, k), state.value(node, 1 - k)
        if v is None or v.layer is None or not isinstance(other, Const | QConst):
            return False
        values = _per_channel(v, state.numbers(node, other, "operands"))
        if values is None:
            return False
        layer = v.layer.scaled(values) if isinstance(kind, Mul) else v.layer.shifted(-values if isinstance(kind, Sub) else values)
        state.values[node.outputs[0]] = replace(v, layer=layer)
        return True
    return False


def divide(state: State, node: Node) -> None:
    """Division by a constant: multiplication by its reciprocal."""
    divisor = state.value(node, 1)
    if not isinstance(divisor, Const | QConst):
        node.fail("divides by what the model computes, only division by a constant is supported")
    numbers = state.numbers(node, divisor, "divisors")
    if (numbers == 0).any():
        node.fail("divides by 0")
    reciprocal = Const((1 / numbers).astype(np.float32))
    state.values[node.outputs[0]] = two_of(state, node, Mul(Activation.NONE), _side(state, node, 0), reciprocal)


def two_of(state: State, node: Node, kind: OpKind, a: Value, b: Value) -> Pending:
    """An operation of two operands: one has the shape of the result, the other that or a shape that broadcasts to it."""
    sides = [a, b]
    late = _late_bias(state, node, kind, sides)
    if late is not None:
        return late
    acts = [k for k in (0, 1) if isinstance(sides[k], Act)]
    if not acts:
        node.fail("computes with constants only")
    shapes = [_shape(v) for v in sides]
    try:
        result = tuple(int(d) for d in np.broadcast_shapes(*shapes))
    except ValueError:
        node.fail(f"combines shapes {shapes[0]} and {shapes[1]}, which do not fit")
    whole = [k for k in acts if prod(shapes[k]) == prod(result)]
    if not whole:
        node.fail(f"combines shapes {shapes[0]} and {shapes[1]}: one of them must be that of the result, {result}", "expand one first")
    main = next((k for k in whole if _act(sides[k]).order is not None), whole[0])
    x, perm = state.perm_of(node, replace(_act(sides[main]), shape=result))
    other = _laid_beside(state, node, sides[1 - main], x, perm)
    inputs = (x.tensor, other) if main == 0 else (other, x.tensor)
    return Pending(node, kind, inputs, state.tensors[x.tensor].shape, result, x.order)


def _late_bias(state: State, node: Node, kind: OpKind, sides: list[Value]) -> Pending | None:
    """A constant added to the codes of the last layer, which has no bias and no other reader: its bias, so that the layer can be a head.

    The layer is then rounded and saturated once where the file does it twice, so this is not done to any other.
    """
    if any(later.op in WITH_WEIGHTS for later in state.model.nodes[state.model.nodes.index(node) + 1 :]):
        return None
    for k in (0, 1):
        x, c = sides[k], sides[1 - k]
        if not isinstance(kind, Add) or not isinstance(x, Act) or not isinstance(c, Const | QConst) or not state.quantized:
            continue
        v = state.origins.get(x.tensor)
        place = k if node.op == "Add" else 3 * k
        if v is None or v.layer is None or v.layer.b is not None or x.shape != v.shape or not state.read_once(node.inputs[place]):
            return None
        values = _per_channel(v, state.numbers(node, c, "operands"))
        if values is None:
            return None
        state.note("a constant added behind the last layer became its bias (one rounding less than in the file)", node.where)
        return replace(v, layer=v.layer.shifted(values))
    return None


def _per_channel(v: Pending, numbers: Reals) -> Reals | None:
    """A constant operand of a layer's result as one number per channel; None where it is none."""
    assert v.layer is not None
    axis = len(v.shape) - 1 if v.order is None and v.stored[-1] == v.shape[-1] else 1
    shape = (1,) * (len(v.shape) - numbers.ndim) + numbers.shape
    if numbers.ndim > len(v.shape) or any(d != 1 for a, d in enumerate(shape) if a != axis) or shape[axis] not in (1, v.layer.channels):
        return None
    return np.broadcast_to(numbers.reshape(-1), (v.layer.channels,))


def _act(v: Value) -> Act:
    assert isinstance(v, Act)
    return v


def _shape(v: Value) -> Shape:
    if isinstance(v, Const):
        return tuple(int(d) for d in v.array.shape)
    if isinstance(v, QConst):
        return tuple(int(d) for d in v.codes.shape)
    return () if isinstance(v, Gate) else v.shape


def _laid_beside(state: State, node: Node, v: Value, x: Act, perm: Shape) -> int:
    """The other operand as a tensor that broadcasts to x as it is stored."""
    back = inverse(perm)
    if isinstance(v, Act):
        v = transposed(replace(v, shape=(1,) * (len(x.shape) - len(v.shape)) + v.shape), back)
        return state.stored(node, v, v.shape)
    assert isinstance(v, Const | QConst)
    data, quant = operand(state, node, v, state.quantized)
    data = data.reshape((1,) * (len(x.shape) - data.ndim) + data.shape).transpose(back)
    return state.tensor(node.inputs[0 if state.values.get(node.inputs[0]) is v else 1], data.shape, quant, data)


# ---- bounds ----------------------------------------------------------------------------------------------------------


def relu(state: State, node: Node) -> None:
    _bound(state, node, 0.0, np.inf)


def clip(state: State, node: Node) -> None:
    lo = _limit(state, node, 1, "min", -np.inf)
    hi = _limit(state, node, 2, "max", np.inf)
    if lo > hi:
        node.fail(f"clips to {lo:g} … {hi:g}")
    _bound(state, node, lo, hi)


def _limit(state: State, node: Node, k: int, name: str, default: float) -> float:
    if name in node.attributes:
        return node.number(name, default)
    if not node.has(k):
        return default
    v = state.value(node, k)
    array = v.real if isinstance(v, QConst) else v.array if isinstance(v, Const) else np.zeros(0)
    if array.size != 1 or array.dtype.kind != "f" or np.isnan(array).any():
        node.fail(f"has a {name} that is no constant number")
    bound = float(array.ravel()[0])
    return default if abs(bound) > 3e38 else bound


def _bound(state: State, node: Node, lo: float, hi: float) -> None:
    """Bounds are taken into what computes the input, where only this node reads it."""
    v = state.value(node, 0)
    if isinstance(v, Pending) and state.uses[node.inputs[0]] == 1:
        low, high = max(lo, v.lo), min(hi, v.hi)
        state.values[node.outputs[0]] = replace(v, lo=min(low, high), hi=high)
        return
    x = state.real(node, 0)
    state.values[node.outputs[0]] = Pending(node, None, (x.tensor,), state.tensors[x.tensor].shape, x.shape, x.order, None, lo, hi)


def min_max(largest: bool) -> Callable[[State, Node], None]:
    """The reader of Max or Min of two: with one number it is a bound."""

    def read(state: State, node: Node) -> None:
        if len(node.inputs) != 2:
            node.fail(f"has {len(node.inputs)} inputs, two are supported", "chain it")
        for k in (0, 1):
            v = state.value(node, k)
            if isinstance(v, Const | QConst) and prod(_shape(v)) == 1:
                bound = float(state.numbers(node, v, "bounds").ravel()[0])
                turned = replace(node, inputs=(node.inputs[1 - k],))
                _bound(state, turned, bound if largest else -np.inf, np.inf if largest else bound)
                return
        v = two_of(state, node, MinMax(largest), _side(state, node, 0), _side(state, node, 1))
        quant = state.coming_quant(node.outputs[0]) if state.quantized else None
        if state.quantized:
            if quant is None:
                node.fail("has a result without QuantizeLinear")
            v = replace(v, inputs=tuple(_same_quant(state, node, t, quant) for t in v.inputs))
        state.values[node.outputs[0]] = v

    return read


def _same_quant(state: State, node: Node, tensor: int, quant: Quant) -> int:
    """An operand of MinMax with the quantization of the result; a constant is quantized anew."""
    t = state.tensors[tensor]
    if t.data is None or t.quant is None:
        return state.requantized(tensor, quant, f"{node.outputs[0]}/{len(state.tensors)}")
    real = (t.data.astype(np.float64) - t.quant.zero_point) * t.quant.scale[0]
    codes = np.clip(np.rint(real / quant.scale[0]) + quant.zero_point, -128, 127).astype(np.int8)
    return state.tensor(t.name, t.shape, quant, codes)


# ---- functions -------------------------------------------------------------------------------------------------------


def function(which: Function) -> Callable[[State, Node], None]:
    """The reader of a function of one value."""

    def read(state: State, node: Node) -> None:
        state.values[node.outputs[0]] = function_of(state, node, which, state.real(node, 0))

    return read


def function_of(state: State, node: Node, which: Function, x: Act) -> Act | Pending:
    """Where int8 fixes the scale of the result, a QuantizeLinear with another one behind it is a second step."""
    alpha = node.number("alpha", 0.01) if which is Function.LEAKY_RELU else 0.0
    stored = state.tensors[x.tensor].shape
    if state.quantized and which in FIXED_QUANTS:
        return Act(state.op(node, Unary(which), (x.tensor,), stored, FIXED_QUANTS[which], node.outputs[0]), x.shape, x.order)
    return Pending(node, Unary(which, alpha), (x.tensor,), stored, x.shape, x.order)


def prelu(state: State, node: Node) -> None:
    """Slopes per channel, channels last in the graph."""
    x = state.real(node, 0)
    v = state.value(node, 1)
    if not isinstance(v, Const | QConst):
        node.fail("has slopes that are computed by the model")
    if len(x.shape) == 4:
        tensor, stored = state.image(node, x)
        order = full(transposed(Act(tensor, stored), (0, 3, 1, 2)))
    else:
        tensor, stored, order = state.stored(node, x, x.shape), x.shape, None
    axis, channels = (1, x.shape[1]) if len(x.shape) == 4 else (len(x.shape) - 1, x.shape[-1])
    shape = (1,) * (len(x.shape) - len(_shape(v))) + _shape(v)
    if len(shape) != len(x.shape) or any(d != 1 for a, d in enumerate(shape) if a != axis) or shape[axis] not in (1, channels):
        node.fail(f"has slopes of shape {_shape(v)} for an input of shape {x.shape}: one, or one per channel, is supported")
    data, quant = operand(state, node, v, state.quantized)
    data = np.broadcast_to(data.reshape(-1), (channels,)).copy()
    alpha = state.tensor(node.inputs[1], (channels,), quant, data)
    state.values[node.outputs[0]] = Pending(node, Prelu(), (tensor, alpha), stored, x.shape, order)


def softmax(state: State, node: Node) -> None:
    state.values[node.outputs[0]] = softmax_of(state, node, state.real(node, 0), node.integer("opset", state.model.opset))


def softmax_of(state: State, node: Node, x: Act, opset: int) -> Act:
    """int8 softmax has scale 1/256 and zero point -128; a QuantizeLinear with another scale behind it is a second step."""
    rank = len(x.shape)
    axis = node.integer("axis", -1 if opset >= 13 else 1)
    if not -rank <= axis < rank:
        node.fail(f"has axis {axis} for shape {x.shape}")
    axis %= rank
    last = (*(k for k in range(rank) if k != axis), axis)
    y = transposed(x, last)
    columns = y.shape[-1]
    if opset < 13:
        last, y, columns = tuple(range(rank)), x, prod(x.shape[axis:])
    matrix = (y.size // columns, columns)
    tensor = state.stored(node, y, matrix)
    quant = SOFTMAX_QUANT if state.tensors[tensor].dtype == INT8 else None
    result = state.op(node, Softmax(1.0), (tensor,), matrix, quant, node.outputs[0])
    return transposed(Act(result, y.shape), inverse(last))
