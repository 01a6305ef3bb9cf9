"""Addresses for the values of a program."""

from mcugrad.memory.planner import Layout, place

__all__ = ["Layout", "place"]
