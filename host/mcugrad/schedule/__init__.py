"""The order and the size of the steps: what runs in stripes, what is computed twice. Never what is computed."""

from mcugrad.schedule.choose import schedule
from mcugrad.schedule.recompute import recompute, work_done_twice
from mcugrad.schedule.search import run_in_stripes

__all__ = ["recompute", "run_in_stripes", "schedule", "work_done_twice"]
