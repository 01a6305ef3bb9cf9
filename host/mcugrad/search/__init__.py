"""Search for the best sparse-update scheme under a memory budget: measure contributions, then choose."""

from mcugrad.search.engine import Engine, open_engine
from mcugrad.search.run import Budget, Case, Outcome, Tools, search
from mcugrad.search.scores import By, Settings

__all__ = ["Budget", "By", "Case", "Engine", "Outcome", "Settings", "Tools", "open_engine", "search"]
