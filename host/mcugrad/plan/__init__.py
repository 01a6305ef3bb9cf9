"""The binary plan: its table of step kinds, its codec."""
