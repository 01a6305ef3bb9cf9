"""Model file -> Graph. The border of the system: what leaves here has been checked in every index, shape and scale."""

from __future__ import annotations

from pathlib import Path

from mcugrad.errors import ModelError
from mcugrad.graph.types import Graph
from mcugrad.importer.onnx import import_onnx, is_onnx
from mcugrad.importer.tflite import import_tflite
from mcugrad.importer.tflite_file import IDENTIFIER

MAX_FILE_BYTES = 256 * 1024 * 1024

_OTHERS = (
    (b"\x89HDF", "a Keras .h5 file"),
    (b"PK\x03\x04", "a zip archive (Keras or PyTorch)"),
)

__all__ = ["MAX_FILE_BYTES", "import_onnx", "import_tflite", "read_model"]


def read_model(path: str | Path, *, allow_float: bool = False) -> Graph:
    """Read a model file; its content says what it is, not its name. The graph is named after the file.

    With ``allow_float``, a float32 or hybrid model becomes a graph of float32 tensors without quantization, to be quantized; an int8 model
    is read as without it.

    Raises ModelError where the file cannot be read, is damaged, or holds something that mcugrad does not support; UnavailableError for an
    ONNX file where the package onnx is not installed.
    """
    path = Path(path)
    data = _read(path)
    try:
        if data[4:8] != IDENTIFIER:
            _refuse_other_formats(data)
            if is_onnx(data) or path.suffix.lower() == ".onnx":
                return import_onnx(data, path.stem, path.parent, allow_float=allow_float)
        return import_tflite(data, path.stem, allow_float=allow_float)
    except ModelError as error:
        raise ModelError(f"{path.name}: {error.text}", error.hint) from None


def _read(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise ModelError(f"{path.name}: {size:,} bytes, the limit is {MAX_FILE_BYTES:,}", "this is no model for a microcontroller")
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"cannot read the model {path}: {error.strerror}", "check the path") from None


def _refuse_other_formats(data: bytes) -> None:
    for magic, what in _OTHERS:
        if data.startswith(magic):
            raise ModelError(f"{what}, neither .tflite nor ONNX", "convert it with tf.lite.TFLiteConverter to a full-int8 .tflite file")
