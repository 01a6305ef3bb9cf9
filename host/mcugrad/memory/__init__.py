"""Addresses for the values of a program."""

from mcugrad.memory.planner import Layout, Lifetime, place

__all__ = ["Layout", "Lifetime", "place"]
