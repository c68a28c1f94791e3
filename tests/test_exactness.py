"""Every exact strategy, alone and composed, gives what diffusers' WanPipeline gives in one process."""

from __future__ import annotations

import copy

import pytest
import torch

from hybridgen.degrees import AXES, Degrees
from hybridgen.models.wan import Wan
from hybridgen.plan import Clip
from hybridgen.runtime.sequence import Shard
from tests.tiny import experts, run_plan, scheduler, stock_latents, tiny_job, tiny_plan

LIMIT = 1e-5

ALONE = [
    Degrees(cfg=2),
    Degrees(ulysses=2),
    Degrees(ulysses=4),
    Degrees(ring=2),
    Degrees(ring=3),
    Degrees(attn2d=(1, 2)),
    Degrees(attn2d=(2, 1)),
    Degrees(attn2d=(2, 2)),
    Degrees(attn2d=(1, 3)),
    Degrees(attn2d=(2, 3)),
    Degrees(pipefusion=2),
    Degrees(tp=2),
    Degrees(tp=4),
]
PAIRS = [
    Degrees(cfg=2, tp=2),
    Degrees(tp=2, ulysses=2),
    Degrees(tp=2, ring=2),
    Degrees(tp=2, attn2d=(1, 2)),
    Degrees(tp=2, attn2d=(2, 1)),
    Degrees(pipefusion=2, tp=2),
    Degrees(cfg=2, ulysses=2),
    Degrees(cfg=2, ring=2),
    Degrees(cfg=2, attn2d=(1, 2)),
    Degrees(cfg=2, attn2d=(2, 1)),
    Degrees(cfg=2, pipefusion=2),
    Degrees(ulysses=2, ring=2),
    Degrees(ulysses=2, attn2d=(1, 2)),
    Degrees(ulysses=2, attn2d=(2, 1)),
    Degrees(pipefusion=2, ulysses=2),
    Degrees(pipefusion=2, ring=2),
    Degrees(pipefusion=2, attn2d=(1, 2)),
    Degrees(pipefusion=2, attn2d=(2, 1)),
]
TRIPLES = [
    Degrees(cfg=2, tp=2, ulysses=2),
    Degrees(tp=2, ulysses=2, attn2d=(2, 1)),
    Degrees(pipefusion=2, tp=2, ring=2),
    Degrees(cfg=2, ulysses=2, ring=2),
    Degrees(cfg=2, ulysses=2, attn2d=(2, 1)),
    Degrees(cfg=2, attn2d=(2, 2)),
    Degrees(ulysses=2, attn2d=(2, 2)),
    Degrees(cfg=2, pipefusion=2, ulysses=2),
    Degrees(pipefusion=2, ulysses=2, attn2d=(1, 2)),
]
SMALL = {  # width, height, frames -> tokens
    "18 tokens": Clip(48, 48, 5, 2, 4.0),
    "15 tokens": Clip(48, 80, 1, 2, 4.0),
    "3 tokens": Clip(16, 16, 9, 2, 4.0),
    "1 token": Clip(16, 16, 1, 2, 4.0),
}
UNEVEN = [
    Degrees(ulysses=4),
    Degrees(ring=4),
    Degrees(attn2d=(2, 2)),
    Degrees(attn2d=(4, 1)),
    Degrees(attn2d=(1, 4)),
    Degrees(ulysses=2, ring=2),
    Degrees(ulysses=2, attn2d=(2, 1)),
    Degrees(pipefusion=2, ulysses=2),
    Degrees(pipefusion=2, attn2d=(2, 1)),
    Degrees(tp=2, ulysses=2),
]


@pytest.mark.parametrize("degrees", ALONE + PAIRS + TRIPLES, ids=str)
def test_equals_one_process(degrees: Degrees) -> None:
    assert run_plan(tiny_plan(degrees)).error(stock_latents()) <= LIMIT


@pytest.mark.parametrize("clip", SMALL.values(), ids=SMALL.keys())
@pytest.mark.parametrize("degrees", UNEVEN, ids=str)
def test_uneven_and_empty_shards_equal_one_process(degrees: Degrees, clip: Clip) -> None:
    assert run_plan(tiny_plan(degrees, clip)).error(stock_latents(clip)) <= LIMIT


@pytest.mark.parametrize(
    "order",
    [
        ("ulysses", "row", "col", "cfg"),
        ("col", "cfg", "ulysses", "row"),
        ("row", "ulysses", "cfg", "col"),
        ("cfg", "col", "row", "ulysses"),
    ],
    ids=",".join,
)
def test_any_mesh_order_equals_one_process(order: tuple[str, ...]) -> None:
    rest = tuple(axis for axis in AXES if axis not in order)
    plan = tiny_plan(Degrees(cfg=2, ulysses=2, attn2d=(2, 1)), order=order + rest)
    assert run_plan(plan).error(stock_latents()) <= LIMIT


@pytest.mark.parametrize("patches", [1, 3])
@pytest.mark.parametrize("degrees", [Degrees(pipefusion=2), Degrees(pipefusion=2, ulysses=2, attn2d=(2, 1))], ids=str)
def test_pipefusion_with_full_warm_up_takes_any_number_of_patches(degrees: Degrees, patches: int) -> None:
    plan = tiny_plan(degrees, patches=patches)
    assert run_plan(plan).error(stock_latents()) <= LIMIT


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_rank_is_the_stock_pipeline_bit_for_bit(dtype: str) -> None:
    outcome = run_plan(tiny_plan(Degrees(), dtype=dtype))
    assert torch.equal(outcome.latents, stock_latents(dtype=dtype))


def test_cfg_is_the_stock_pipeline_bit_for_bit() -> None:
    assert torch.equal(run_plan(tiny_plan(Degrees(cfg=2))).latents, stock_latents())


@pytest.mark.parametrize(
    "degrees",
    [Degrees(cfg=2), Degrees(ulysses=4), Degrees(ring=4), Degrees(attn2d=(2, 2)), Degrees(attn2d=(1, 4))],
    ids=str,
)
def test_bfloat16_is_no_less_exact_than_one_process(degrees: Degrees) -> None:
    exact = stock_latents()
    alone = ((stock_latents(dtype="bfloat16") - exact).norm() / exact.norm()).item()
    assert run_plan(tiny_plan(degrees, dtype="bfloat16")).error(exact) <= 1.5 * alone


@pytest.mark.parametrize("attention", ["cpu"])
def test_a_forced_kernel_equals_the_stock_one(attention: str) -> None:
    assert run_plan(tiny_plan(Degrees()), attention).error(stock_latents()) <= LIMIT


def test_guidance_off_runs_one_branch() -> None:
    clip = Clip(64, 64, 17, 2, guidance=1.0)
    plan = tiny_plan(Degrees(ulysses=2), clip)
    outcome = run_plan(plan)
    assert outcome.error(stock_latents(clip)) <= LIMIT
    assert plan.passes == 2


def test_the_clip_needs_both_experts() -> None:
    """Otherwise the tests above would not see a fault in one of them."""
    plan = tiny_plan(Degrees())
    models = copy.deepcopy(experts())  # the cached ones keep their processors
    model = Wan(plan, models, scheduler(), tiny_job(plan).kernel, Shard(plan.tokens, 0))
    assert {step.expert for step in model.schedule()} == {0, 1}
