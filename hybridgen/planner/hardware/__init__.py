"""Machines: constants with their origin, and which link a group of ranks spans. No torch."""
