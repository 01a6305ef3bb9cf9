"""The order and the size of the steps: what runs in stripes, what is computed twice. Never what is computed."""

from mcugrad.schedule.search import run_in_stripes

__all__ = ["run_in_stripes"]
