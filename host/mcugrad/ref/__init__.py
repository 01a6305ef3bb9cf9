"""The NumPy executor of a plan: slow, exact, readable. One file per op, the same names as the C kernels; SPEC.md section 3 is the text."""

from mcugrad.ref.run import Machine, Result

__all__ = ["Machine", "Result"]
