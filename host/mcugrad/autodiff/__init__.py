"""Which layers are trained, and the backward pass that they need."""

from mcugrad.autodiff.differentiate import TrainGraph, differentiate
from mcugrad.autodiff.scheme import Scheme, parse_scheme

__all__ = ["Scheme", "TrainGraph", "differentiate", "parse_scheme"]
