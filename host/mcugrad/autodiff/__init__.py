"""Which layers are trained, and the backward pass that they need."""

from mcugrad.autodiff.differentiate import Loss, TrainGraph, differentiate, only_predict
from mcugrad.autodiff.scheme import Scheme, parse_scheme

__all__ = ["Loss", "Scheme", "TrainGraph", "differentiate", "only_predict", "parse_scheme"]
