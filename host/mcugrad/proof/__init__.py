"""The proof: float gradients as a yardstick, board against reference bit for bit."""
