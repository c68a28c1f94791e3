"""Guidance branches on two halves of the mesh."""
