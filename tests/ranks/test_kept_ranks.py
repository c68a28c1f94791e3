"""Ranks that are kept from test to test do what forked ones do."""

from __future__ import annotations

import os
import time

import pytest
import torch
import torch.distributed as dist

from hybridgen.distributed.processes import RankContext
from hybridgen.errors import RunFailed
from tests.support.ranks import run_ranks

SHARED = {"number": 0}


def process(_: RankContext) -> int:
    return os.getpid()


def shared(_: RankContext) -> int:
    return SHARED["number"]


def total(context: RankContext) -> float:
    """The sum of all ranks' numbers."""
    x = torch.tensor([float(context.rank)])
    dist.all_reduce(x)
    return x.item()


def test_ranks_are_kept_and_make_a_new_group_for_every_case() -> None:
    assert run_ranks(3, total) == [3.0, 3.0, 3.0]
    assert run_ranks(2, total) == [1.0, 1.0]
    assert run_ranks(2, process) == run_ranks(3, process)[:2]


def test_what_a_rank_changes_is_a_copy() -> None:
    mine = torch.zeros(2)
    assert run_ranks(2, lambda context: mine.add_(context.rank + 1).tolist()) == [[1.0, 1.0], [2.0, 2.0]]
    assert mine.tolist() == [0.0, 0.0]


def test_what_is_patched_here_is_patched_on_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHARED, "number", 7)
    assert run_ranks(2, shared) == [7, 7]


def test_a_failing_rank_is_named_and_the_next_case_runs() -> None:
    def work(context: RankContext) -> None:
        if context.rank == 1:
            raise ValueError("disk on fire")
        time.sleep(60)

    with pytest.raises(RunFailed, match=r"rank 1 of 2 .* failed: ValueError: disk on fire"):
        run_ranks(2, work)
    assert run_ranks(2, total) == [1.0, 1.0]


def test_a_case_that_hangs_ends() -> None:
    with pytest.raises(RunFailed, match=r"ranks \[0, 1\] are not done"):
        run_ranks(2, lambda _: time.sleep(60), deadline=0.2)
