"""What the planner says a rank holds, against what tensors it really makes (on the meta device, which holds none)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hybridgen.distributed.peak_memory import PeakMemory
from hybridgen.distributed.processes import RankContext
from hybridgen.engine.control import Control
from hybridgen.engine.rank import Rank
from hybridgen.models import catalogue
from hybridgen.plan.plan import Clip, Plan
from hybridgen.planner.price.memory import peak, phase_sizes, terms
from hybridgen.strategies.registry import Degrees
from tests.support.ranks import run_ranks
from tests.support.tiny import run_plan, tiny_plan

WAN22 = catalogue.find("wan2.2")
CLIP = Clip(1280, 720, 81, 40, 4.0)
PAGED = 0.99
"""Share of a moment's memory that is seen at least: pages of code that a forked rank reads after it hide as many."""


def test_weights_are_shared_by_tp_and_pipefusion_only() -> None:
    def size(plan: Plan, name: str, rank: int = 0) -> int:
        return sum(term.size for term in terms(plan, rank) if term.name == name)

    whole = Plan(WAN22, CLIP, Degrees())
    assert size(whole, "weights") == 2 * WAN22.transformer.params * 2
    for degrees in (Degrees(cfg=2), Degrees(ulysses=8), Degrees(attn2d=(3, 3)), Degrees(ring=4)):
        assert size(Plan(WAN22, CLIP, degrees), "weights") == size(whole, "weights")
    split = Plan(WAN22, CLIP, Degrees(tp=2, pipefusion=2)).with_options(warmup=40)
    assert size(split, "weights") == pytest.approx(size(whole, "weights") / 4, rel=0.05)


def test_text_is_encoded_on_rank_0_before_the_experts_come() -> None:
    plan = Plan(WAN22, CLIP, Degrees(cfg=2, ulysses=4))
    by_phase = phase_sizes(terms(plan))
    encoder = WAN22.text_params * 2
    assert [term.phases for term in terms(plan) if term.name == "text encoder"] == [("setup",)]
    assert by_phase["setup"] == encoder and peak(plan) == max(by_phase.values()) < sum(t.size for t in terms(plan))
    assert not any(term.name == "text encoder" for term in terms(plan, 1))


def test_branches_and_shares_of_the_sequence() -> None:
    def size(name: str, **degrees: Any) -> int:
        return sum(t.size for t in terms(Plan(WAN22, CLIP, Degrees(**degrees)), 0) if t.name == name)

    assert size("text K/V") == 2 * size("text K/V", cfg=2) == 2 * 2 * 2 * 512 * 5120 * 40 * 2
    shared = sum(t.size for t in terms(Plan(WAN22, CLIP, Degrees(ulysses=8))) if t.moment)
    assert shared == pytest.approx(
        size("activations") / 8, rel=0.001
    )  # its buffers fill what the block needs elsewhere
    buffers = Plan(WAN22, CLIP, Degrees(pipefusion=2)).with_options(warmup=1)
    kept = [t.size for t in terms(buffers) if t.name == "K/V buffers"]
    assert kept == [2 * 75600 * 5120 * 2 * 20 * 2]  # K and V, tokens, channels, bf16, layers of a stage, branches


def test_decoding_is_held_by_the_vae_s_ranks_and_shrinks_with_them() -> None:
    def decoding(width: int, rank: int) -> int:
        plan = Plan(WAN22, CLIP, Degrees(ulysses=8, vae=width))
        return sum(t.size for t in terms(plan, rank) if t.name == "vae decoding")

    assert decoding(8, 0) < decoding(4, 0) < decoding(1, 0) and not decoding(4, 4)


def test_what_lasts_a_moment_is_in_the_peak_but_for_mapped_files() -> None:
    size = 100_000_000

    def measure(_: RankContext) -> list[int]:
        found = []
        for mapped in (False, True):
            watch = PeakMemory(torch.device("cpu"))
            watch.stop.set()  # its thread might look just then
            torch.ones(size, dtype=torch.uint8)
            watch.sample(mapped)
            found.append(watch.close())
        return found

    (moment, mapped), *_ = run_ranks(1, measure, kept=False)
    assert PAGED * size <= moment < 1.2 * size and mapped < 0.2 * size


def test_what_comes_before_mapped_files_is_in_the_peak() -> None:
    """As when inputs are made ready between two readings of weights."""
    size = 100_000_000

    def measure(context: RankContext) -> int:
        cpu: Any = torch.device("cpu")
        nothing: Any = None
        rank = Rank(context, cpu, nothing, PeakMemory(cpu), Control(context), nothing)
        rank.memory.stop.set()
        torch.ones(size, dtype=torch.uint8)
        with rank.stage("load", mapped=True):
            pass
        return rank.memory.close()

    (found,) = run_ranks(1, measure, kept=False)
    assert PAGED * size <= found < 1.2 * size


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    "degrees",
    [
        Degrees(),
        Degrees(cfg=2),
        Degrees(tp=2),
        Degrees(ulysses=2),
        Degrees(ring=2),
        Degrees(attn2d=(2, 2)),
        Degrees(ulysses=2, attn2d=(1, 2)),
        Degrees(cfg=2, pipefusion=2),
        Degrees(pipefusion=2, ring=2),
        Degrees(pipefusion=2, attn2d=(2, 1)),
    ],
    ids=str,
)
def test_tensors_of_a_whole_run_are_those_that_are_declared(degrees: Degrees, dtype: str) -> None:
    """On ranks, through the worker's own steps: all that is held while denoising but weights.

    Of ranks that hold the same the least counts: gloo's threads let go of what was sent a moment late.
    """
    plan = tiny_plan(degrees, Clip(256, 256, 9, 3, 4.0, 3.0), dtype=dtype, warmup=2, patches=2)
    least: dict[int, int] = {}
    for rank, most in enumerate(run_plan(plan, count=True).held):
        declared = sum(t.size for t in terms(plan, rank) if "denoise" in t.phases and t.name not in ("weights", "vae"))
        least[declared] = min(most, least.get(declared, most))
        assert most <= 1.25 * declared
    assert all(declared == pytest.approx(most, rel=0.05) for declared, most in least.items()), least
