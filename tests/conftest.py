"""Makes this folder importable, so that tests can say ``from helpers.tflite_builder import ModelBuilder``."""
