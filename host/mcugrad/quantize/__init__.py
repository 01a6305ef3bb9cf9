"""Post-training quantization: a float graph and representative samples -> an int8 graph."""

from mcugrad.quantize.observe import Method
from mcugrad.quantize.quantizer import Options, quantize_graph
from mcugrad.quantize.run_float import predict_float, run_float

__all__ = ["Method", "Options", "predict_float", "quantize_graph", "run_float"]
