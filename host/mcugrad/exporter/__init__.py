"""Graph -> model file."""

from mcugrad.exporter.tflite import write_tflite

__all__ = ["write_tflite"]
