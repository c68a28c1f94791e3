"""Tests with tensors: models, ranks and whole runs."""
