"""Tiny checkpoints with random weights, one of every kind, for trying a split and for tests."""
