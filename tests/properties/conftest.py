"""Tests here need no torch: whatever imports it fails."""

import sys

import pytest


@pytest.fixture(autouse=True)
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """`import torch` raises ModuleNotFoundError in a test."""
    monkeypatch.setitem(sys.modules, "torch", None)
