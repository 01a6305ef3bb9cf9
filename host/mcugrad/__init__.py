"""mcugrad: int8 training on Cortex-M microcontrollers, and the host tools that prepare, drive and prove it."""

__version__ = "0.1.0"
