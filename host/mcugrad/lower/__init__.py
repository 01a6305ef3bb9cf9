"""Graph and scheme to steps."""
