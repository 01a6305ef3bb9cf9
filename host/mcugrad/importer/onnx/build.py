"""The graph under construction: reading operands, laying tensors out, and deciding what an op's output is.

Two kinds of models pass through here. In a quantized one every result waits as ``Pending`` for the QuantizeLinear that says its scale, then
becomes an int8 tensor; what DequantizeLinear returns is that tensor again, read as real numbers. In a float one results become float32
tensors as soon as something reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf, prod

import numpy as np
import numpy.typing as npt

from mcugrad.errors import ModelError
from mcugrad.graph.types import (
    Activation,
    Add,
    AvgPool,
    Conv2D,
    DwConv2D,
    Function,
    Linear,
    MaxPool,
    MinMax,
    Mul,
    Op,
    OpKind,
    Quant,
    Reshape,
    Sub,
    Tensor,
    Transpose,
    Unary,
)
from mcugrad.importer.names import Namer
from mcugrad.importer.onnx.file import MAX_ELEMENTS, Array, Node, OnnxModel, short
from mcugrad.importer.onnx.values import (
    MAX_STORED_RANK,
    TO_NCHW,
    TO_NHWC,
    Act,
    Const,
    Gate,
    Layer,
    Order,
    Pending,
    QConst,
    Shape,
    Value,
    factored,
    full,
    permutation,
    simplified,
    turned,
)

HINT_QDQ = "quantize the model with QuantizeLinear and DequantizeLinear around every operator (onnxruntime.quantization does)"
FUSING = (Conv2D, DwConv2D, Linear, AvgPool, MaxPool, Add, Sub, Mul)
INT8 = np.dtype(np.int8)
INT32 = np.dtype(np.int32)
FLOAT32 = np.dtype(np.float32)
INT32_MAX = 2**31 - 1
BIAS_SCALE_TOLERANCE = 1e-5

_BOUNDS = {
    (-inf, inf): Activation.NONE,
    (0.0, inf): Activation.RELU,
    (0.0, 6.0): Activation.RELU6,
    (-1.0, 1.0): Activation.RELU_N1_1,
}
_FUNCTIONS = {Activation.RELU: Function.RELU, Activation.RELU6: Function.RELU6, Activation.RELU_N1_1: Function.RELU_N1_1}
_MOVES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity", "Dropout", "Pad", "Slice", "Concat", "Resize")
_TRANSPARENT = (*_MOVES, "MaxPool", "GlobalMaxPool", "Relu", "Clip")


@dataclass(slots=True)
class State:
    """What is known on the way through the nodes. ``values`` by name; ``tensors`` and ``ops`` are the graph so far.

    ``coming``: what a QuantizeLinear node gives its result. ``origins``: the tensors that layers made, and how. ``ends``: codes that
    nothing but the DequantizeLinear at the end of the model reads.
    """

    model: OnnxModel
    quantized: bool
    coming: Callable[[State, Node], tuple[Quant, str]]
    tensors: list[Tensor] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    values: dict[str, Value] = field(default_factory=dict)
    uses: dict[str, int] = field(default_factory=dict)
    readers: dict[str, list[Node]] = field(default_factory=dict)
    writers: dict[str, Node] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)
    namer: Namer = field(default_factory=Namer)
    layouts: dict[tuple[int, Shape, Shape, Shape], int] = field(default_factory=dict)
    origins: dict[int, Pending] = field(default_factory=dict)
    ends: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for node in self.model.nodes:
            self.writers.update(dict.fromkeys(node.outputs, node))
            for name in filter(None, node.inputs):
                self.uses[name] = self.uses.get(name, 0) + 1
                self.readers.setdefault(name, []).append(node)
        for border in self.model.outputs:
            self.uses[border.name] = self.uses.get(border.name, 0) + 1

    # ---- operands ----

    def note(self, text: str, place: str) -> None:
        places = self.notes.setdefault(text, [])
        if place not in places:
            places.append(place)

    def value(self, node: Node, k: int) -> Value:
        if not node.has(k):
            node.fail(f"has no input {k}")
        name = node.inputs[k]
        if name not in self.values:
            node.fail(f"reads '{short(name)}', an optional output that mcugrad does not compute", "export the inference graph only")
        return self.values[name]

    def act(self, node: Node, k: int) -> Act:
        """Input k as an activation that is in the graph."""
        v = self.value(node, k)
        if isinstance(v, Const | QConst):
            node.fail(f"reads the constant '{short(node.inputs[k])}' where an activation is expected", "fold it into its neighbours")
        if isinstance(v, Gate):
            v.node.fail(f"is read by {node.where}: a hard sigmoid is supported only times its own input, as hard swish", "use Sigmoid")
        return self.settled(node.inputs[k], v) if isinstance(v, Pending) else v

    def real(self, node: Node, k: int) -> Act:
        """Input k as an activation in real numbers: float32, or int8 behind DequantizeLinear."""
        x = self.act(node, k)
        if not x.real:
            node.fail(f"computes with the {x.codes} codes of '{short(node.inputs[k])}'", "put DequantizeLinear before it")
        if self.quantized and self.tensors[x.tensor].dtype != INT8:
            node.fail(f"reads the model's input '{short(node.inputs[k])}' as float32", HINT_QDQ)
        return x

    def settled(self, name: str, v: Pending) -> Act:
        """A result that something reads before QuantizeLinear: as float32, or with the scale that its QuantizeLinear will give it."""
        quant = self.coming_quant(name) if self.quantized else None
        if self.quantized and quant is None:
            readers = self.readers.get(name)
            who = f"{readers[0].where} uses" if readers else "is the model's output"
            v.node.fail(f"has a result that {who} before any QuantizeLinear", HINT_QDQ)
        act = self.materialize(v, name, quant)
        self.values[name] = act
        return act

    def coming_quant(self, name: str) -> Quant | None:
        """The quantization that a result will get: of its own QuantizeLinear, or of one behind operators that move or choose values."""
        for _ in range(len(self.model.nodes)):
            readers = self.readers.get(name, [])
            for reader in readers:
                if reader.op == "QuantizeLinear" and reader.inputs[0] == name:
                    return self.coming(self, reader)[0]
            if len(readers) != 1 or readers[0].op not in _TRANSPARENT or not readers[0].outputs:
                return None
            name = readers[0].outputs[0]
        return None

    def read_once(self, name: str) -> bool:
        """Whether a value, and what it is quantized from, have no other reader."""
        for _ in range(4):
            if self.uses.get(name, 0) != 1:
                return False
            writer = self.writers.get(name)
            if writer is None or writer.op not in ("QuantizeLinear", "DequantizeLinear"):
                return True
            name = writer.inputs[0]
        return False

    def constant(self, node: Node, k: int, what: str) -> Array:
        """Input k as a plain constant of the file."""
        v = self.value(node, k)
        if not isinstance(v, Const):
            node.fail(f"has {what} that are computed by the model", "export with constant " + what)
        return v.array

    def integers(self, node: Node, k: int, what: str) -> tuple[int, ...]:
        array = self.constant(node, k, what)
        if array.dtype.kind not in "iu" or array.ndim > 1 or array.size > 64:
            node.fail(f"has {what} of type {array.dtype} and shape {array.shape}, a list of integers is expected")
        return tuple(int(i) for i in array.ravel())

    def numbers(self, node: Node, v: Value, what: str) -> npt.NDArray[np.float64]:
        """A constant in real numbers, dequantized where it is quantized."""
        if not isinstance(v, Const | QConst):
            node.fail(f"has {what} computed by the model, a constant is expected", "export with constant " + what)
        array = v.real if isinstance(v, QConst) else v.array
        if array.dtype.kind != "f" or not np.isfinite(array).all():
            node.fail(f"has {what} of type {array.dtype}, or not finite; finite floating-point numbers are expected")
        return array.astype(np.float64)

    # ---- the graph ----

    def tensor(self, name: str, shape: Shape, quant: Quant | None, data: Array | None = None) -> int:
        """Add a tensor: float32, or int8 where it has a quantization."""
        if data is not None:
            data = np.ascontiguousarray(data)
            data.setflags(write=False)
        dtype = data.dtype if data is not None else FLOAT32 if quant is None else INT8
        self.tensors.append(Tensor(name, shape, dtype, quant, data))
        return len(self.tensors) - 1

    def op(self, node: Node | None, kind: OpKind, inputs: Sequence[int], shape: Shape, quant: Quant | None, name: str) -> int:
        """Add an op and its output."""
        if node is not None and (not shape or min(shape) < 1 or prod(shape) > MAX_ELEMENTS):
            node.fail(f"makes shape {shape}: sizes of 1 or more with at most {MAX_ELEMENTS:,} elements are expected", "use a smaller model")
        y = self.tensor(name, shape, quant)
        self.ops.append(Op(self.namer.name(kind), kind, tuple(inputs), (y,)))
        return y

    def quant(self, tensor: int) -> Quant:
        t = self.tensors[tensor]
        if t.quant is None:
            raise ModelError(f"the activation '{short(t.name)}' is {t.dtype} and nothing says its scale", HINT_QDQ)
        return t.quant

    def stored(self, node: Node | None, x: Act, shape: Shape, want: Order | None = None) -> int:
        """A tensor of ``shape`` whose element j is logical element want[j] of x (None: j). Adds what moves the data, once."""
        t = self.tensors[x.tensor]
        need = full(x) if want is None else full(x)[want]
        if simplified(need) is None:
            return self._moved(x.tensor, t.shape, (), shape, node)
        perm = permutation(need, t.shape, shape)
        if perm is not None:
            return self._moved(x.tensor, t.shape, perm, shape, node)
        found = factored(need)
        if found is None or len(found[0]) > MAX_STORED_RANK:
            where = f"{node.where} needs" if node is not None else "the model's output needs"
            node_or_first = node or self.model.nodes[-1]
            node_or_first.fail(f"cannot be laid out: {where} a transposition of more than {MAX_STORED_RANK} axes", "simplify the reshapes")
        return self._moved(x.tensor, found[0], found[1], shape, node)

    def _moved(self, tensor: int, dims: Shape, perm: Shape, shape: Shape, node: Node | None) -> int:
        """``tensor`` read as ``dims``, transposed by ``perm`` (empty: not at all), read as ``shape``."""
        key = (tensor, dims, perm, shape)
        if key not in self.layouts:
            now, quant, name = tensor, self.tensors[tensor].quant, self.tensors[tensor].name
            if perm:
                now = self._reshaped(now, dims, quant, f"{name}/flat")
                now = self.op(node, Transpose(perm), (now,), tuple(dims[p] for p in perm), quant, f"{name}/transposed")
            self.layouts[key] = self._reshaped(now, shape, quant, f"{name}/reshaped")
        return self.layouts[key]

    def _reshaped(self, tensor: int, shape: Shape, quant: Quant | None, name: str) -> int:
        if self.tensors[tensor].shape == shape:
            return tensor
        return self.op(None, Reshape(), (tensor,), shape, quant, name)

    def image(self, node: Node, x: Act) -> tuple[int, Shape]:
        """x of logical shape (1,C,H,W) or (1,C,L) as a tensor (1,H,W,C), L as W."""
        shape = (*x.shape[:2], 1, x.shape[2]) if len(x.shape) == 3 else x.shape
        if len(shape) != 4 or shape[0] != 1:
            node.fail(f"reads shape {x.shape}, (1,C,H,W) or (1,C,L) is expected", "export the model with batch size 1")
        nhwc = tuple(shape[p] for p in TO_NHWC)
        return self.stored(node, replace(x, shape=shape), nhwc, turned(shape, TO_NHWC)), nhwc

    def perm_of(self, node: Node, x: Act) -> tuple[Act, Shape]:
        """(x, perm): logical axis k of x is stored axis perm[k]. Where x is no transposition of its tensor, it is laid out anew."""
        perm = permutation(full(x), self.tensors[x.tensor].shape, x.shape)
        if perm is not None:
            return x, perm
        plain = replace(x, tensor=self.stored(node, x, x.shape), order=None)
        return plain, tuple(range(len(x.shape)))

    # ---- results ----

    def materialize(self, v: Pending, name: str, quant: Quant | None) -> Act:
        """The result in the graph, int8 where ``quant`` is given: layer, op, bounds."""
        bounds = _BOUNDS.get((v.lo, v.hi))
        kind, inputs = v.kind, v.inputs
        if v.layer is not None:
            inputs = (*inputs, *self._parameters(v, name))
        if kind is None and bounds in _FUNCTIONS:
            kind, bounds = Unary(_FUNCTIONS[bounds]), Activation.NONE
        elif isinstance(kind, FUSING) and bounds is not None:
            kind, bounds = replace(kind, activation=bounds), Activation.NONE
        if kind is None:
            y = inputs[0] if quant is None else self.requantized(inputs[0], quant, name)
        else:
            y = self.op(v.node, kind, inputs, v.stored, quant, name)
        if bounds is not Activation.NONE:
            y = self._bounded(v, y, quant, name)
        elif v.layer is not None and (v.lo, v.hi) == (-inf, inf):
            self.origins[y] = v
        return Act(y, v.shape, v.order)

    def requantized(self, x: int, quant: Quant, name: str) -> int:
        if self.quant(x) == quant:
            return x
        return self.op(None, Unary(Function.REQUANTIZE), (x,), self.tensors[x].shape, quant, name)

    def rename(self, tensor: int, old: str, new: str) -> None:
        """Call an activation what its QuantizeLinear calls it: so results can be compared by name."""
        t = self.tensors[tensor]
        if t.name == old:
            self.tensors[tensor] = replace(t, name=new)

    def _bounded(self, v: Pending, y: int, quant: Quant | None, name: str) -> int:
        """Bounds that no fused activation has: a maximum, then a minimum, where the codes do not have them anyway."""
        for largest, bound in ((True, v.lo), (False, v.hi)):
            if not np.isfinite(bound):
                continue
            if quant is None:
                data: Array = np.array([bound], np.float32)
            else:
                code = float(np.rint(np.float32(bound) / np.float32(quant.scale[0]))) + quant.zero_point
                if (code <= -128) if largest else (code >= 127):
                    continue
                data = np.array([np.clip(code, -128, 127)], np.int8)
            other = self.tensor(f"{name}/{'low' if largest else 'high'}", (1,), quant, data)
            y = self.op(v.node, MinMax(largest), (y, other), v.stored, quant, name)
        return y

    def _parameters(self, v: Pending, name: str) -> tuple[int, ...]:
        """Weights and bias of a layer as tensors."""
        layer = v.layer
        assert layer is not None
        if layer.scale is None:
            w = self.tensor(f"{name}/weights", layer.w.shape, None, layer.w.astype(np.float32))
            return (w,) if layer.b is None else (w, self.tensor(f"{name}/bias", layer.b.shape, None, layer.b.astype(np.float32)))
        scale = layer.scale.astype(np.float32)
        if not np.isfinite(scale).all() or (scale < 0).any():
            v.node.fail("has a weight scale that is negative or not finite", HINT_QDQ)
        if (scale == 0).any():
            self.note("channels have weight scale 0 (pruned, they stay frozen)", v.node.where)
        w = self.tensor(f"{name}/weights", layer.w.shape, Quant(tuple(map(float, scale)), 0, layer.axis if scale.size > 1 else 0), layer.w)
        if layer.b is None:
            return (w,)
        b_scale = (np.float32(self.quant(v.inputs[0]).scale[0]) * scale).astype(np.float32)
        codes = self._bias_codes(v.node, layer, layer.b, b_scale)
        return (w, self.tensor(f"{name}/bias", codes.shape, Quant(tuple(map(float, b_scale))), codes))

    def _bias_codes(self, node: Node, layer: Layer, b: npt.NDArray[np.float64], scale: npt.NDArray[np.float32]) -> npt.NDArray[np.int32]:
        """int32 biases: the file's own, or the real ones in steps of input scale · weight scale."""
        if layer.codes is not None:
            return layer.codes.astype(np.int32)
        wide = np.broadcast_to(scale.astype(np.float64), b.shape)
        q = np.where(wide > 0, np.rint(b / np.where(wide > 0, wide, 1.0)), 0.0)
        if (np.abs(q) > INT32_MAX).any():
            self.note("biases are saturated at the end of int32", node.where)
        return np.clip(q, -INT32_MAX, INT32_MAX).astype(np.int32)


def from_image(stored: Shape, rank: int) -> tuple[Shape, Order | None]:
    """Logical shape and order of a stored (1,H,W,C): (1,C,H,W), or (1,C,W) for rank 3."""
    shape = tuple(stored[p] for p in TO_NCHW)
    return (shape[0], shape[1], shape[3]) if rank == 3 else shape, simplified(turned(stored, TO_NCHW))
