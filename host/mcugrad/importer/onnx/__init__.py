"""ONNX -> Graph: QDQ and QOperator int8 models, and float models that are to be quantized.

An ONNX model is NCHW, the graph NHWC. The graph's inputs and outputs keep the file's shapes, so data has the shape that the user knows;
behind an input with several channels stands one Transpose. uint8 codes q become int8 codes q - 128, exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mcugrad.errors import ModelError
from mcugrad.graph.types import Activation, Add, Dequantize, Function, Graph, Mul, Op, Sub, Tensor
from mcugrad.importer.names import Namer
from mcugrad.importer.onnx import elementwise, layers, moves, pools, qoperator, quantization
from mcugrad.importer.onnx.build import HINT_QDQ, INT8, State
from mcugrad.importer.onnx.constants import FOLDED, fold
from mcugrad.importer.onnx.file import MICROSOFT, STANDARD, Border, Node, OnnxModel, read, require_opset, short
from mcugrad.importer.onnx.values import Act, Const, Gate, Pending, QConst

SINGLE_ROUNDING = 1
HINT_FLOAT = "quantize it first: mcugrad quantize MODEL.onnx --data calibration.npz -o model.tflite"
HINT_STATIC_INT8 = "quantize it statically (onnxruntime.quantization.quantize_static), so that all scales stand in the file"

_Reader = Callable[[State, Node], None]


def is_onnx(data: bytes) -> bool:
    """Whether a file looks like ONNX: a protobuf that begins with a small ir_version and goes on with a field of ModelProto."""
    return len(data) > 8 and data[0] == 0x08 and data[1] < 0x40 and data[2] in b"\x12\x1a\x22\x28\x32\x3a\x42"


def import_onnx(data: bytes, name: str, base_dir: Path | None = None, *, allow_float: bool = False) -> Graph:
    """The graph in the bytes of an ONNX file. ``base_dir``: where external data may lie.

    A float model gives float32 tensors throughout, and only where ``allow_float``; batch normalization is folded, every other kind is
    int8. Raises ModelError for what is damaged or not supported, UnavailableError where the package onnx is missing.
    """
    model = read(data, base_dir)
    _refuse_unknown(model)
    require_opset(model)
    quantized = _is_quantized(model)
    state = State(model, quantized, quantization.coming)
    if not quantized and not allow_float:
        _refuse_float(model)
    for name_, array in model.constants.items():
        state.values[name_] = Const(array)
    inputs = tuple(_input(state, border) for border in model.inputs)
    for node in model.nodes:
        if not fold(state, node):
            _reader(node)(state, node)
    outputs = tuple(_output(state, border) for border in model.outputs)
    notes = tuple(f"{text}: {', '.join(places)}" for text, places in state.notes.items())
    graph = Graph(name, tuple(state.tensors), tuple(state.ops), inputs, outputs, model.crc, notes, SINGLE_ROUNDING if quantized else 0)
    return _pruned(graph)


# ---- what the file is ------------------------------------------------------------------------------------------------


def _refuse_unknown(model: OnnxModel) -> None:
    """Raise ModelError for the first operator without a reader, with the last place before it where the model can be cut."""
    for at, node in enumerate(model.nodes):
        if node.op in ("ConvInteger", "MatMulInteger", "DynamicQuantizeLinear", "DynamicQuantizeMatMul"):
            raise ModelError(f"{node.where} belongs to a dynamically quantized model, which is not supported", HINT_STATIC_INT8)
        if (node.domain, node.op) not in _READERS and not (node.domain == STANDARD and node.op in FOLDED):
            of = f" of domain {short(node.domain)}" if node.domain else ""
            raise ModelError(f"{node.where}{of} is not supported", _cut_hint(model, at))


def _cut_hint(model: OnnxModel, bad: int) -> str:
    """The last single tensor that all of the model before node ``bad`` flows through; in a quantized model one with a scale."""
    scaled = {name for node in model.nodes if node.op[:1] == "Q" or node.op == "DequantizeLinear" for name in node.outputs}
    flowing = {border.name for border in model.inputs}
    for node in model.nodes[:bad]:
        if flowing & set(node.inputs):
            flowing |= {name for name in node.outputs if name}
    for at in range(bad, 0, -1):
        made = flowing & ({name for node in model.nodes[:at] for name in node.outputs} | {border.name for border in model.inputs})
        used = {name for node in model.nodes[at:] for name in node.inputs} | {border.name for border in model.outputs}
        crossing = made & used
        if len(crossing) == 1 and (crossing <= scaled or not scaled) and not crossing & {border.name for border in model.inputs}:
            cut = crossing.pop()
            return f"the nearest cut before it is tensor '{short(cut)}': onnx.utils.extract_model(…, output_names=['{short(cut)}'])"
    return "there is no single tensor before it at which the model can be cut"


def _is_quantized(model: OnnxModel) -> bool:
    """Whether activations inside the model are quantized; float models may have a QuantizeLinear behind everything."""
    inputs, outputs = {border.name for border in model.inputs}, {border.name for border in model.outputs}
    for node in model.nodes:
        if node.op.startswith("QLinear") or node.op == "QGemm":
            return True
        if node.op in ("QuantizeLinear", "DequantizeLinear") and inputs & set(node.inputs[:1]):
            return True
        if node.op == "QuantizeLinear" and node.inputs and node.inputs[0] not in model.constants and not outputs & set(node.outputs):
            return True
    return False


def _refuse_float(model: OnnxModel) -> None:
    first = next((n for n in model.nodes if n.op in elementwise.WITH_WEIGHTS), model.nodes[0])
    for node in model.nodes:
        if node.op in elementwise.WITH_WEIGHTS and any(
            name in model.constants and model.constants[name].dtype.name in quantization.CODES for name in node.inputs
        ):
            node.fail("has int8 weights without a scale: no standard ONNX", HINT_QDQ)
    raise ModelError(f"float model (float32 activations, first seen at {first.where}), mcugrad trains full-int8 models", HINT_FLOAT)


# ---- the border ------------------------------------------------------------------------------------------------------


def _input(state: State, border: Border) -> int:
    """A model input: float32, or codes whose quantization the first reader tells."""
    if border.type not in ("float32", *quantization.CODES):
        raise ModelError(f"the model's input '{short(border.name)}' is {border.type}: float32, int8 or uint8 is expected", HINT_QDQ)
    codes = border.type if border.type != "float32" else "int8"
    is_real = border.type == "float32"
    if not state.quantized and not is_real:
        state.note(f"the input is {border.type} in the file, the float graph reads the same numbers as float32", short(border.name))
    if border.type == "uint8" and state.quantized:
        state.note("the input is uint8 in the file, the graph's int8 code is 128 less", short(border.name))
    tensor = state.tensor(border.name, border.shape, None)
    if state.quantized and not is_real:
        state.tensors[tensor] = Tensor(border.name, border.shape, INT8)
    state.values[border.name] = Act(tensor, border.shape, None, is_real, codes)
    return tensor


def _output(state: State, border: Border) -> int:
    """A model output in the file's shape and order: codes as int8, real numbers of an int8 tensor behind Dequantize."""
    v = state.values.get(border.name)
    if v is None or isinstance(v, Const | QConst):
        raise ModelError(f"the model's output '{short(border.name)}' does not depend on its input", "export the inference graph only")
    if isinstance(v, Gate):
        v.node.fail("is the model's output: a hard sigmoid is supported only times its own input, as hard swish", "use Sigmoid")
    act = state.settled(border.name, v) if isinstance(v, Pending) else v
    tensor = state.stored(None, act, act.shape)
    if state.quantized and act.real and state.tensors[tensor].dtype == INT8:
        y = state.tensor(border.name, act.shape, None)
        state.ops.append(Op(state.namer.name(Dequantize()), Dequantize(), (tensor,), (y,)))
        return y
    return tensor


def _pruned(graph: Graph) -> Graph:
    """Without ops that no output needs, and without tensors that no op has; ops that remain keep their order and get their names anew."""
    needed = set(graph.outputs)
    kept = []
    for op in reversed(graph.ops):
        if op.outputs[0] in needed:
            needed.update(op.inputs)
            kept.append(op)
    needed.update(graph.inputs)
    new = {old: i for i, old in enumerate(sorted(needed))}
    namer = Namer()
    ops = tuple(
        replace(op, name=namer.name(op.kind), inputs=tuple(new[i] for i in op.inputs), outputs=(new[op.outputs[0]],))
        for op in reversed(kept)
    )
    for index in graph.inputs:
        t = graph.tensors[index]
        if t.dtype == INT8 and t.quant is None:
            raise ModelError(f"the model's input '{short(t.name)}' is {t.dtype} and nothing says its scale", HINT_QDQ)
    return replace(
        graph,
        tensors=_named([graph.tensors[i] for i in sorted(needed)]),
        ops=ops,
        inputs=tuple(new[i] for i in graph.inputs),
        outputs=tuple(new[i] for i in graph.outputs),
    )


def _named(tensors: list[Tensor]) -> tuple[Tensor, ...]:
    """Each name once: the last tensor keeps it, it holds what the file calls so; the steps on the way there are numbered."""
    last = {t.name: i for i, t in enumerate(tensors)}
    taken = set(last)
    found = []
    for i, t in enumerate(tensors):
        name, k = t.name, 0
        while name in taken and last.get(name) != i:
            k += 1
            name = f"{t.name}/{k}"
        taken.add(name)
        found.append(replace(t, name=name))
    return tuple(found)


# ---- the operators ---------------------------------------------------------------------------------------------------


def _quantize(state: State, node: Node) -> None:
    """In a float model a QuantizeLinear is the end: its result is the float output."""
    if state.quantized:
        quantization.quantize(state, node)
        return
    state.note("the output is quantized in the file, the float graph ends before that", node.where)
    moves.same(state, node)


def _dequantize(state: State, node: Node) -> None:
    quantization.dequantize(state, node)


def _reader(node: Node) -> _Reader:
    reader = _READERS.get((node.domain, node.op))
    if reader is None:
        node.fail("is supported with constant inputs only", "export with fixed shapes")
    return reader


_STANDARD: dict[str, _Reader] = {
    "Conv": layers.conv,
    "Gemm": layers.gemm,
    "MatMul": layers.matmul,
    "BatchNormalization": layers.batch_norm,
    "Add": elementwise.two(Add(Activation.NONE)),
    "Sub": elementwise.two(Sub(Activation.NONE)),
    "Mul": elementwise.two(Mul(Activation.NONE)),
    "Div": elementwise.divide,
    "Max": elementwise.min_max(largest=True),
    "Min": elementwise.min_max(largest=False),
    "Relu": elementwise.relu,
    "Clip": elementwise.clip,
    "LeakyRelu": elementwise.function(Function.LEAKY_RELU),
    "Sigmoid": elementwise.function(Function.LOGISTIC),
    "Tanh": elementwise.function(Function.TANH),
    "HardSigmoid": elementwise.hard_sigmoid,
    "HardSwish": elementwise.function(Function.HARD_SWISH),
    "PRelu": elementwise.prelu,
    "Softmax": elementwise.softmax,
    "MaxPool": pools.maxpool,
    "GlobalMaxPool": pools.global_maxpool,
    "AveragePool": pools.avgpool,
    "GlobalAveragePool": pools.global_avgpool,
    "ReduceMean": pools.reduce_mean,
    "Resize": pools.resize,
    "Reshape": moves.reshape,
    "Flatten": moves.flatten,
    "Squeeze": moves.squeeze,
    "Unsqueeze": moves.unsqueeze,
    "Transpose": moves.transpose,
    "Concat": moves.concat,
    "Slice": moves.slice_,
    "Split": moves.split,
    "Pad": moves.pad,
    "Identity": moves.same,
    "Dropout": moves.same,
    "Cast": moves.cast,
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "QLinearConv": qoperator.conv,
    "QLinearMatMul": qoperator.matmul,
}

_MICROSOFT: dict[str, _Reader] = {
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "QGemm": qoperator.gemm,
    "QLinearAdd": qoperator.two(Add(Activation.NONE)),
    "QLinearMul": qoperator.two(Mul(Activation.NONE)),
    "QLinearConcat": qoperator.concat,
    "QLinearAveragePool": qoperator.avgpool,
    "QLinearGlobalAveragePool": qoperator.global_avgpool,
    "QLinearSigmoid": qoperator.function(Function.LOGISTIC),
    "QLinearLeakyRelu": qoperator.function(Function.LEAKY_RELU),
    "QLinearSoftmax": qoperator.softmax,
}

_READERS: dict[tuple[str, str], _Reader] = {
    **{(STANDARD, op): reader for op, reader in _STANDARD.items()},
    **{(MICROSOFT, op): reader for op, reader in _MICROSOFT.items()},
}
"""(domain, operator) -> its reader."""

SUPPORTED = tuple(sorted(_STANDARD)) + tuple(f"{MICROSOFT}.{op}" for op in sorted(_MICROSOFT))

__all__ = ["SUPPORTED", "import_onnx", "is_onnx"]
