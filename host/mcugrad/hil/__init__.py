"""Hardware-in-the-loop tests: which board, how it is kept alive between tests, one training step beside the reference.

Knows nothing of pytest; mcugrad.pytest_plugin makes fixtures of it, and imports each module when a test first needs it.
"""
