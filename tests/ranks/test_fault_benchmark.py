"""A part of benchmarks/faults.py that takes seconds: a fault of each sort, at a random moment of a real run."""

from __future__ import annotations

import random

import pytest

from benchmarks.faults import KINDS, hit


@pytest.mark.parametrize(
    ("kind", "launcher", "stage"),
    [
        ("SIGSTOP a rank", "", "s/step"),
        ("SIGTERM 8 times", "", "denoise  60 steps"),
        ("folder of --out removed", "", "denoise  60 steps"),
        ("SIGKILL a rank", "srun", "s/step"),
    ],
)
def test_a_run_that_is_hit_ends_as_it_should(kind: str, launcher: str, stage: str) -> None:
    found = hit(kind, launcher, stage, random.Random(1))
    assert found is not None and found.told, found
    assert found.seconds is not None and found.code not in (None, 0), found
    assert found.kept is not False and not found.orphans and not found.left, found
    assert launcher or found.code in KINDS[kind].codes, found
