"""Graphs back into model files."""

from __future__ import annotations

from mcugrad.exporter.tflite import write_tflite
from mcugrad.graph import Graph


def model_bytes(graph: Graph, suffix: str) -> bytes:
    """A graph as the file that the suffix names: .onnx, else .tflite. Raises UnavailableError where the extra onnx is not installed."""
    if suffix == ".onnx":
        from mcugrad.exporter.onnx import write_onnx  # noqa: PLC0415  needs the extra

        return write_onnx(graph)
    return write_tflite(graph)


__all__ = ["model_bytes", "write_tflite"]
