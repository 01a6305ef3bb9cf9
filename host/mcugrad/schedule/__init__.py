"""The order and the size of the steps: what runs in stripes, what is computed twice. Never what is computed."""

from mcugrad.schedule.search import stripe_peaks

__all__ = ["stripe_peaks"]
