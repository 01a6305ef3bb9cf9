"""Makes this folder importable, so that tests can say ``from helpers.tflite_builder import ModelBuilder``."""

pytest_plugins = ("pytester", "mcugrad.pytest_plugin")
