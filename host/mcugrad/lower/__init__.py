"""Graph to step records."""

from mcugrad.lower.lower import Options, lower
from mcugrad.lower.program import Draft, Program, TrainedLayer, Value

__all__ = ["Draft", "Options", "Program", "TrainedLayer", "Value", "lower"]
