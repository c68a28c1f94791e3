"""Cosmos 3."""
