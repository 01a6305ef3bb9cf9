"""The bytes of an ONNX file -> OnnxModel: nodes in execution order, constants as arrays, inputs and outputs with static shapes.

Only structure is checked here: damaged protobuf, opset, sizes, external data, names that nobody writes, cycles. What the nodes mean is the
business of the modules beside this one.
"""

from __future__ import annotations

import importlib
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from mcugrad.errors import ModelError, UnavailableError

MIN_OPSET, MAX_OPSET = 11, 21
MAX_NODES = 20_000
MAX_RANK = 8
MAX_CONSTANT_ELEMENTS = 1 << 26
MAX_ELEMENTS = 1 << 22
"""Of an activation: 4 MB in int8, more than any board that mcugrad knows."""

HINT_DAMAGED = "the file is damaged, export the model again"
HINT_STATIC = "export with fixed shapes and batch size 1 (torch.onnx.export without dynamic_axes)"
STANDARD, MICROSOFT = "", "com.microsoft"

Array = npt.NDArray[Any]
Attribute = int | float | str | tuple[int, ...] | tuple[float, ...] | Array

_TYPES: dict[int, tuple[str, str | None]] = {
    1: ("float32", "<f4"),
    2: ("uint8", "<u1"),
    3: ("int8", "<i1"),
    4: ("uint16", "<u2"),
    5: ("int16", "<i2"),
    6: ("int32", "<i4"),
    7: ("int64", "<i8"),
    8: ("string", None),
    9: ("bool", "|b1"),
    10: ("float16", "<f2"),
    11: ("float64", "<f8"),
    12: ("uint32", "<u4"),
    13: ("uint64", "<u8"),
    16: ("bfloat16", None),
    17: ("float8e4m3fn", None),
    19: ("float8e5m2", None),
    21: ("uint4", None),
    22: ("int4", None),
}
_FIELDS = {"float32": "float_data", "float64": "double_data", "int64": "int64_data", "uint32": "uint64_data", "uint64": "uint64_data"}


@dataclass(frozen=True, slots=True)
class Node:
    """One node. ``inputs`` has "" for an optional input that is absent. ``domain`` is "" for the standard operators."""

    index: int
    name: str
    op: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute]

    @property
    def where(self) -> str:
        return f"node {self.index} {self.op} '{short(self.name or (self.outputs[0] if self.outputs else ''))}'"

    def fail(self, text: str, hint: str = HINT_DAMAGED) -> NoReturn:
        raise ModelError(f"{self.where} {text}", hint)

    def has(self, k: int) -> bool:
        return k < len(self.inputs) and self.inputs[k] != ""

    def integer(self, name: str, default: int) -> int:
        value = self.attributes.get(name, default)
        if not isinstance(value, int):
            self.fail(f"has an attribute {short(name)} that is no integer")
        return value

    def number(self, name: str, default: float) -> float:
        value = self.attributes.get(name, default)
        if not isinstance(value, float | int) or not math.isfinite(value):
            self.fail(f"has an attribute {short(name)} that is no finite number")
        return float(value)

    def text(self, name: str, default: str) -> str:
        value = self.attributes.get(name, default)
        if not isinstance(value, str):
            self.fail(f"has an attribute {short(name)} that is no text")
        return value

    def integers(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        value = self.attributes.get(name, default)
        if not isinstance(value, tuple) or not all(isinstance(v, int) for v in value):
            self.fail(f"has an attribute {short(name)} that is no list of integers")
        return tuple(int(v) for v in value)


@dataclass(frozen=True, slots=True)
class Border:
    """An input or output of the model; an output's shape is not read."""

    name: str
    type: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """``constants``: read-only arrays by name. ``crc`` is the CRC-32 of the file and of the external data in the order of use."""

    opset: int
    nodes: tuple[Node, ...]
    constants: Mapping[str, Array]
    inputs: tuple[Border, ...]
    outputs: tuple[Border, ...]
    crc: int


def _string(value: object) -> str:
    """A name of the file. The protobuf runtime hands out bytes where they are no UTF-8."""
    if not isinstance(value, str):
        raise ModelError(f"the file has a name that is no text: {value!r:.60}", HINT_DAMAGED)
    return value


def short(name: str) -> str:
    """A name from the file, short enough for one line of an error."""
    clean = "".join(c if c.isprintable() else "?" for c in name[-200:])
    return clean if len(clean) <= 60 else f"…{clean[-59:]}"


def onnx_package() -> Any:
    """The package onnx. Raises UnavailableError where the extra is not installed."""
    try:
        return importlib.import_module("onnx")
    except ImportError:
        raise UnavailableError("ONNX files need the package onnx, which is not installed", "pip install 'mcugrad[onnx]'") from None


def read(data: bytes, base_dir: Path | None) -> OnnxModel:
    """Parse and check a file. External data is looked for in ``base_dir`` only. Raises ModelError, UnavailableError."""
    proto = onnx_package().ModelProto()
    try:
        proto.ParseFromString(data)
        return _model(proto, data, base_dir)
    except ModelError:
        raise
    except (UnicodeDecodeError, OverflowError, MemoryError) as error:
        raise ModelError(f"the file holds what no ONNX file may hold ({type(error).__name__})", HINT_DAMAGED) from None
    except Exception as error:  # the protobuf runtimes share no base class for what they raise on damaged bytes
        if type(error).__name__ != "DecodeError":
            raise
        raise ModelError("the file is no ONNX model: its protobuf is damaged or cut short", HINT_DAMAGED) from None


def _model(proto: Any, data: bytes, base_dir: Path | None) -> OnnxModel:
    graph = proto.graph
    if not graph.node:
        raise ModelError("the file has no ONNX graph with nodes", HINT_DAMAGED)
    if len(graph.node) > MAX_NODES:
        raise ModelError(f"the model has {len(graph.node):,} nodes, the limit is {MAX_NODES:,}", "use a smaller model")
    store = _Store(base_dir, zlib.crc32(data))
    constants: dict[str, Array] = {}
    for tensor in graph.initializer:
        name = _string(tensor.name)
        if name in constants or not name:
            raise ModelError(f"two initializers have the name '{short(name)}'", HINT_DAMAGED)
        constants[name] = store.array(tensor)
    if len(graph.sparse_initializer):
        raise ModelError("the model has sparse initializers, which are not supported", "export dense weights")
    inputs = [i for i in graph.input if _string(i.name) not in constants]
    nodes = [_node(i, n, store) for i, n in enumerate(graph.node)]
    written = _written(nodes, {*constants, *(i.name for i in inputs)})
    outputs = tuple(Border(_string(o.name), _type_name(o.type.tensor_type.elem_type), ()) for o in graph.output)
    for output in outputs:
        if output.name not in written:
            raise ModelError(f"the model's output '{short(output.name)}' is computed by no node", HINT_DAMAGED)
    if not inputs or not outputs:
        raise ModelError(f"the model has {len(inputs)} inputs and {len(outputs)} outputs", "export a model that computes something")
    return OnnxModel(_opset(proto), _sorted(nodes, written), constants, tuple(map(_input, inputs)), outputs, store.crc)


def _opset(proto: Any) -> int:
    """The version of the standard operators; 0 where the file names none."""
    versions = [o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")]
    return max(versions, default=0)


def require_opset(model: OnnxModel) -> None:
    """Raise ModelError for a file of other opsets than those that the readers are written for."""
    if not MIN_OPSET <= model.opset <= MAX_OPSET:
        raise ModelError(
            f"the model uses ONNX opset {model.opset}, mcugrad reads {MIN_OPSET} to {MAX_OPSET}",
            "export it again with opset_version=17, or use onnx.version_converter",
        )


def _type_name(code: int) -> str:
    return _TYPES.get(code, (f"type {code}", None))[0]


def _input(info: Any) -> Border:
    """A model input with static shape: an unknown batch counts as 1."""
    name, shape = info.name, []
    if not info.type.HasField("tensor_type") or not info.type.tensor_type.HasField("shape"):
        raise ModelError(f"the model's input '{short(name)}' is no tensor with a shape", HINT_STATIC)
    for axis, dim in enumerate(info.type.tensor_type.shape.dim):
        known = dim.HasField("dim_value")
        if not known and axis > 0:
            raise ModelError(
                f"the model's input '{short(name)}' has the dynamic size '{short(_string(dim.dim_param))}' on axis {axis}", HINT_STATIC
            )
        shape.append(int(dim.dim_value) if known else 1)
    what = f"the model's input '{short(name)}' has shape {tuple(shape)}"
    if not shape or len(shape) > MAX_RANK or min(shape) < 1 or math.prod(shape) > MAX_ELEMENTS:
        raise ModelError(f"{what}: 1 to {MAX_RANK} sizes of 1 or more with at most {MAX_ELEMENTS:,} elements are expected", HINT_STATIC)
    if shape[0] != 1:
        raise ModelError(f"{what}: the batch must be 1", HINT_STATIC)
    return Border(name, _type_name(info.type.tensor_type.elem_type), tuple(shape))


# ---- nodes -----------------------------------------------------------------------------------------------------------


def _node(index: int, proto: Any, store: _Store) -> Node:
    domain = "" if proto.domain == "ai.onnx" else _string(proto.domain)
    inputs, outputs = (tuple(map(_string, names)) for names in (proto.input, proto.output))
    node = Node(index, _string(proto.name), _string(proto.op_type), domain, inputs, outputs, {})
    attributes = {_string(a.name): value for a in proto.attribute if (value := _attribute(node, a, store)) is not None}
    return replace(node, attributes=attributes)


def _attribute(node: Node, a: Any, store: _Store) -> Attribute | None:
    """The value of an attribute; None for kinds that no supported operator has (subgraphs, sparse tensors, types)."""
    match a.type:
        case 1:
            return float(a.f)
        case 2:
            return int(a.i)
        case 3:
            return bytes(a.s).decode("utf-8", "replace")
        case 4:
            return store.array(a.t, f"{node.where} attribute {short(_string(a.name))}")
        case 6:
            return tuple(map(float, a.floats))
        case 7:
            return tuple(map(int, a.ints))
        case _:
            return None


def _written(nodes: Sequence[Node], given: set[str]) -> set[str]:
    """Every name that has a value. Raises ModelError for one that is written twice, or read and never written."""
    written = set(given)
    for node in nodes:
        for name in filter(None, node.outputs):
            if name in written:
                node.fail(f"writes '{short(name)}', which has a value already")
            written.add(name)
    for node in nodes:
        for name in filter(None, node.inputs):
            if name not in written:
                node.fail(f"reads '{short(name)}', which no node writes")
    return written


def _sorted(nodes: Sequence[Node], written: set[str]) -> tuple[Node, ...]:
    """The nodes in an order in which every value is written before it is read; the file's order where that is one."""
    writers = {name: node for node in nodes for name in node.outputs if name}
    readers: dict[int, list[Node]] = {}
    missing = {}
    for node in nodes:
        before = {writers[name].index for name in node.inputs if name in writers}
        missing[node.index] = len(before)
        for index in before:
            readers.setdefault(index, []).append(node)
    ready = [node for node in nodes if missing[node.index] == 0]
    done: list[Node] = []
    while ready:
        node = ready.pop(0)
        done.append(node)
        for reader in readers.get(node.index, []):
            missing[reader.index] -= 1
            if missing[reader.index] == 0:
                ready.append(reader)
    if len(done) < len(nodes):
        stuck = next(node for node in nodes if missing[node.index] > 0)
        stuck.fail("is part of a cycle: it needs its own result")
    by_file = [node.index for node in done] if not _in_order(nodes, writers) else [node.index for node in nodes]
    return tuple(nodes[i] for i in by_file)


def _in_order(nodes: Sequence[Node], writers: Mapping[str, Node]) -> bool:
    return all(writers[name].index < node.index for node in nodes for name in node.inputs if name in writers)


# ---- constants -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Store:
    """Turns the tensors of a file into arrays."""

    base_dir: Path | None
    crc: int

    def array(self, t: Any, where: str = "") -> Array:
        """A constant as a read-only array of its own type, aligned."""
        where = where or f"the initializer '{short(_string(t.name))}'"
        name, code = _TYPES.get(t.data_type, (f"type {t.data_type}", None))
        shape = tuple(int(d) for d in t.dims)
        if len(shape) > MAX_RANK or any(d < 0 for d in shape) or math.prod(shape) > MAX_CONSTANT_ELEMENTS:
            raise ModelError(f"{where} has shape {shape}, the limit is {MAX_CONSTANT_ELEMENTS:,} elements", "use a smaller model")
        if code is None:
            raise ModelError(f"{where} is of type {name}, which mcugrad cannot read", "export float32 or int8 weights")
        dtype = np.dtype(code)
        if t.data_location == 1:
            flat = np.frombuffer(self._external(t, where, math.prod(shape) * dtype.itemsize), dtype)
        elif t.HasField("raw_data"):
            if len(t.raw_data) != math.prod(shape) * dtype.itemsize:
                raise ModelError(f"{where} has {len(t.raw_data):,} bytes for shape {shape} of {name}", HINT_DAMAGED)
            flat = np.frombuffer(t.raw_data, dtype)
        else:
            flat = _listed(t, name, dtype)
        if flat.size != math.prod(shape):
            raise ModelError(f"{where} has {flat.size:,} values for shape {shape}", HINT_DAMAGED)
        value = flat.astype(dtype.newbyteorder("=")).reshape(shape)
        value.setflags(write=False)
        return value

    def _external(self, t: Any, where: str, expected: int) -> bytes:
        """The bytes of a constant that lies in a file beside the model. Nothing outside the model's folder is opened."""
        entries = {_string(e.key): _string(e.value) for e in t.external_data}
        location = entries.get("location", "")
        what = f"{where} lies in the external file '{short(location)}'"
        offset, length = _number(entries.get("offset", "0")), _number(entries.get("length", str(expected)))
        if self.base_dir is None:
            raise ModelError(f"{what}, and the model was given without a folder", "read it from a path")
        if offset is None or length is None or length != expected:
            raise ModelError(f"{what} with length {short(entries.get('length', ''))}, {expected:,} bytes are expected", HINT_DAMAGED)
        path = self._inside(location, what)
        try:
            with path.open("rb") as stream:
                stream.seek(offset)
                content = stream.read(length)
        except (OSError, OverflowError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "bad offset"
            raise ModelError(f"{what}, which cannot be read: {reason}", "put the file beside the model") from None
        if len(content) != length:
            raise ModelError(f"{what}, which ends {length - len(content):,} bytes too early", "copy the whole file beside the model")
        self.crc = zlib.crc32(content, self.crc)
        return content

    def _inside(self, location: str, what: str) -> Path:
        """The path of an external file. Raises ModelError where it leaves the model's folder, also by a link."""
        assert self.base_dir is not None
        try:
            base = self.base_dir.resolve()
            path = (base / location).resolve()
            inside = path.is_relative_to(base) and path != base
        except (OSError, ValueError, RuntimeError):
            inside = False
        if not inside or "\\" in location:
            raise ModelError(f"{what}, which is not inside the model's folder", "external data must lie beside the model")
        return path


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def _listed(t: Any, name: str, dtype: np.dtype[Any]) -> Array:
    """Values kept one by one; the small integer types, bool and float16 share the int32 list."""
    field = _FIELDS.get(name, "int32_data")
    values = np.array(getattr(t, field)[:], np.uint64 if field == "uint64_data" else np.int64 if "int" in field else dtype)
    if name == "float16":
        return values.astype(np.uint16).view(np.float16)
    return values.astype(dtype)
