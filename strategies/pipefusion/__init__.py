"""Consecutive blocks on consecutive ranks, one patch of tokens at a time."""
