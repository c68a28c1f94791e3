"""What rules.py declares is what the collectives send, to the byte, on every rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hybridgen.distributed.comm import Group, Traffic
from hybridgen.distributed.processes import RankContext
from hybridgen.plan.plan import Clip
from hybridgen.strategies.registry import Degrees
from tests.support.ranks import run_ranks
from tests.support.tiny import CLIP, run_plan, tiny_plan

TRIES = 7
UNEVEN = Clip(48, 48, 5, 2, 4.0)

CASES = [
    (Degrees(cfg=2), UNEVEN, "bfloat16"),
    (Degrees(ulysses=4), UNEVEN, "float32"),
    (Degrees(ulysses=4), CLIP, "bfloat16"),
    (Degrees(ring=3), CLIP, "float32"),
    (Degrees(ring=3), UNEVEN, "bfloat16"),
    (Degrees(attn2d=(1, 3)), CLIP, "float32"),
    (Degrees(attn2d=(3, 1)), UNEVEN, "bfloat16"),
    (Degrees(attn2d=(2, 2)), UNEVEN, "float32"),
    (Degrees(tp=4), UNEVEN, "bfloat16"),
    (Degrees(pipefusion=2, tp=2, ulysses=2), UNEVEN, "bfloat16"),
    (Degrees(cfg=2, ulysses=2, attn2d=(1, 2)), UNEVEN, "float32"),
    (Degrees(pipefusion=2, ulysses=2), replace(CLIP, guidance=1.0), "float32"),
]
"""Uneven shards and other types; every composition in test_exactness.py is compared, too."""


@pytest.mark.parametrize(("degrees", "clip", "dtype"), CASES, ids=str)
def test_declared_bytes_are_sent_bytes(degrees: Degrees, clip: Clip, dtype: str) -> None:
    outcome = run_plan(tiny_plan(degrees, clip, dtype))
    assert outcome.sent == outcome.declared


def test_counted_bytes_are_what_the_sockets_carry() -> None:
    """p2p and all-to-all against the kernel's counters of the loopback device; 4 MB drown the headers."""

    def loopback_bytes() -> int:
        for line in Path("/proc/self/net/dev").read_text().splitlines():
            if line.strip().startswith("lo:"):
                return int(line.split()[9])
        pytest.skip("no loopback device")

    def exchange(context: RankContext) -> tuple[int, int, int]:
        traffic = Traffic()
        group = Group("test", (0, 1), context.rank, traffic, torch.distributed.group.WORLD)
        x = torch.zeros(2, 500_000)
        kinds: dict[str, Callable[[], object]] = {
            "all-to-all": lambda: group.all_to_all(x),
            "hop": lambda: group.start_shift(x)[1](),
        }
        for act in kinds.values():  # connects
            act()
        before, totals = sum(traffic.sent.values()), {}
        for kind, act in kinds.items():
            least = 2**62  # others may use the device, too: the quietest of some tries counts
            for _ in range(TRIES):
                torch.distributed.barrier()
                seen = loopback_bytes()
                torch.distributed.barrier()
                act()
                torch.distributed.barrier()
                least = min(least, loopback_bytes() - seen)
            totals[kind] = least
        return sum(traffic.sent.values()) - before, totals["all-to-all"], totals["hop"]

    (counted, all_to_all, hop), _ = run_ranks(2, exchange)
    assert counted == TRIES * (2_000_000 + 4_000_000)
    assert all_to_all == pytest.approx(2 * 2_000_000, rel=0.05)
    assert hop == pytest.approx(2 * 4_000_000, rel=0.05)
