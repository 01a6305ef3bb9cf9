"""Other interpreters as witnesses: TensorFlow Lite Micro, LiteRT's reference kernels (they show inner tensors), ONNX Runtime."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mcugrad.errors import UnavailableError, UsageError
from mcugrad.graph import Graph, Tensor
from mcugrad.graph.normalize import normalize

Int8 = npt.NDArray[np.int8]

ARENA_SPARE = 1 << 20
"""Bytes of the interpreter's arena beyond what the tensors take."""


class Oracle(Protocol):
    """``tolerance``: how many units of the last place its outputs may differ from ours."""

    name: str
    tolerance: int

    def outputs(self, inputs: Sequence[Int8]) -> list[Int8]:
        """int8 outputs of the model, each flat, for int8 inputs, each flat."""

    def inside(self) -> LiteRtOracle | None:
        """Who shows the inner tensors of the same file; None where nobody can."""


def load_oracle(kind: str, model: Path, graph: Graph) -> Oracle:
    """``kind`` is tflm, litert or ort; "auto" picks by the file. Raises UnavailableError where its package is missing."""
    if kind == "auto":
        kind = "ort" if model.suffix == ".onnx" else "tflm"
    makers: dict[str, Callable[[bytes, Graph], Oracle]] = {"tflm": TflmOracle, "litert": LiteRtOracle, "ort": OrtOracle}
    if (kind == "ort") != (model.suffix == ".onnx"):
        raise UsageError(f"--oracle {kind} does not read {model.suffix} files", "--oracle tflm for .tflite, --oracle ort for .onnx")
    return makers[kind](model.read_bytes(), graph)


def need(module: str, package: str) -> Any:
    """Import an oracle's module."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UnavailableError(f"the oracle {package} is not installed", f"pip install {package}") from None


@dataclass(frozen=True, slots=True)
class Port:
    """One input or output of the model file: our int8 tensor, and whether the file has it in float."""

    tensor: Tensor
    file_dtype: np.dtype[np.generic]
    file_shape: tuple[int, ...]

    def to_file(self, codes: Int8) -> npt.NDArray[np.generic]:
        """int8 codes as the file's input takes them."""
        if self.file_dtype == np.int8:
            return codes.reshape(self.file_shape)
        quant = self.tensor.quant
        assert quant is not None
        return (np.float32(quant.scale[0]) * (codes.astype(np.float32) - quant.zero_point)).reshape(self.file_shape)

    def from_file(self, values: npt.NDArray[np.generic]) -> Int8:
        """The file's output as int8 codes."""
        if values.dtype == np.int8:
            return np.asarray(values, np.int8).reshape(-1)
        quant = self.tensor.quant
        assert quant is not None
        codes = np.rint(np.asarray(values, np.float64) / quant.scale[0]) + quant.zero_point
        return np.asarray(np.clip(codes, -128, 127), np.int8).reshape(-1)


def _ports(graph: Graph, ours: Sequence[int], theirs: Sequence[int]) -> list[Port]:
    return [Port(graph.tensors[i], graph.tensors[f].dtype, graph.tensors[f].shape) for i, f in zip(ours, theirs, strict=True)]


class _Ports:
    def __init__(self, graph: Graph) -> None:
        normal = normalize(graph)
        self.inputs = _ports(graph, normal.inputs, graph.inputs)
        self.outputs = _ports(graph, normal.outputs, graph.outputs)


class TflmOracle:
    """The tflite-micro interpreter."""

    name = "tflite-micro"
    tolerance = 0

    def __init__(self, data: bytes, graph: Graph) -> None:
        runtime = need("tflite_micro", "tflite-micro").runtime
        self._ports = _Ports(graph)
        self._file = data, graph
        activations = sum(t.size * t.dtype.itemsize for t in graph.tensors)
        self._interpreter = runtime.Interpreter.from_bytes(data, arena_size=2 * activations + 16 * len(data) + ARENA_SPARE)

    def outputs(self, inputs: Sequence[Int8]) -> list[Int8]:
        for k, (port, codes) in enumerate(zip(self._ports.inputs, inputs, strict=True)):
            self._interpreter.set_input(_unsigned(port.to_file(codes), self._interpreter.get_input_details(k)["dtype"]), k)
        self._interpreter.invoke()
        return [port.from_file(_signed(self._interpreter.get_output(k))) for k, port in enumerate(self._ports.outputs)]

    def inside(self) -> LiteRtOracle | None:
        try:
            return LiteRtOracle(*self._file)
        except UnavailableError:
            return None


class LiteRtOracle:
    """LiteRT with its reference kernels; it also shows the inner tensors."""

    name = "LiteRT reference kernels"
    tolerance = 0

    def __init__(self, data: bytes, graph: Graph) -> None:
        module = need("ai_edge_litert.interpreter", "ai-edge-litert")
        self._ports = _Ports(graph)
        try:
            self._interpreter = module.Interpreter(
                model_content=data,
                experimental_op_resolver_type=module.OpResolverType.BUILTIN_REF,
                experimental_preserve_all_tensors=True,
            )
            self._interpreter.allocate_tensors()
        except (RuntimeError, ValueError) as e:
            raise UnavailableError(f"LiteRT does not take this model ({str(e).splitlines()[0]})", "verify without --layerwise") from None

    def outputs(self, inputs: Sequence[Int8]) -> list[Int8]:
        for port, codes, detail in zip(self._ports.inputs, inputs, self._interpreter.get_input_details(), strict=True):
            self._interpreter.set_tensor(detail["index"], _unsigned(port.to_file(codes), detail["dtype"]))
        self._interpreter.invoke()
        details = self._interpreter.get_output_details()
        values = [_signed(self._interpreter.get_tensor(d["index"])) for d in details]
        return [port.from_file(v) for port, v in zip(self._ports.outputs, values, strict=True)]

    def inside(self) -> LiteRtOracle | None:
        return self

    def inner(self) -> dict[str, Int8]:
        """int8 tensors of the last run by name; names that stand more than once are left out."""
        found: dict[str, list[Int8]] = {}
        for detail in self._interpreter.get_tensor_details():
            if detail["dtype"] is np.int8:
                try:
                    value = self._interpreter.get_tensor(detail["index"])
                except ValueError:
                    continue
                found.setdefault(detail["name"], []).append(np.asarray(value, np.int8).reshape(-1))
        return {name: values[0] for name, values in found.items() if len(values) == 1}


class OrtOracle:
    """ONNX Runtime. It rounds half to even from float, so each op's output may differ by one, and those ones add up."""

    name = "onnxruntime"

    def __init__(self, data: bytes, graph: Graph) -> None:
        runtime = need("onnxruntime", "onnxruntime")
        self.tolerance = len(normalize(graph).ops)
        self._ports = _Ports(graph)
        self._session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])

    def outputs(self, inputs: Sequence[Int8]) -> list[Int8]:
        feeds = {}
        for port, codes, node in zip(self._ports.inputs, inputs, self._session.get_inputs(), strict=True):
            feeds[node.name] = _unsigned(port.to_file(codes), np.uint8 if node.type == "tensor(uint8)" else np.int8)
        results = self._session.run(None, feeds)
        return [port.from_file(_signed(v)) for port, v in zip(self._ports.outputs, results, strict=True)]

    def inside(self) -> LiteRtOracle | None:
        return None


def _unsigned(values: npt.NDArray[np.generic], dtype: type[np.generic]) -> npt.NDArray[np.generic]:
    """int8 codes as uint8 codes with the zero point moved, where the file takes those."""
    return (np.asarray(values, np.int16) + 128).astype(np.uint8) if dtype == np.uint8 and values.dtype == np.int8 else values


def _signed(values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """uint8 codes as int8 codes with the zero point moved."""
    return (np.asarray(values, np.int16) - 128).astype(np.int8) if values.dtype == np.uint8 else values
