"""Makes this folder importable, so that tests can say ``from helpers.tflite_builder import ModelBuilder``."""

from hypothesis import settings

pytest_plugins = ("pytester", "mcugrad.pytest_plugin")

settings.register_profile("repeatable", derandomize=True)
"""The same examples in each run, for CI: what chance finds in `make test-all` does not stop another's change."""
