"""Graph to step records."""

from mcugrad.lower.context import Options
from mcugrad.lower.lower import lower
from mcugrad.lower.program import Draft, Program, TrainedLayer, Value

__all__ = ["Draft", "Options", "Program", "TrainedLayer", "Value", "lower"]
