"""Every exact strategy, alone and composed, gives what diffusers' WanPipeline gives in one process."""

from __future__ import annotations

import copy
import re

import pytest
import torch

from hybridgen.distributed.sequence import Shard
from hybridgen.errors import RequestError
from hybridgen.models.wan.denoiser import Wan
from hybridgen.plan.plan import Clip
from hybridgen.recipe.resolve import check
from hybridgen.strategies.registry import AXES, Degrees
from tests.support import matrix
from tests.support.tiny import experts, run_plan, scheduler, stock_frames, stock_latents, tiny_job, tiny_plan

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


@pytest.mark.parametrize("degrees", ALONE + matrix.LEGAL + matrix.TRIPLES + matrix.FULL, ids=str)
def test_equals_one_process_and_sends_what_is_declared(degrees: Degrees) -> None:
    outcome = run_plan(tiny_plan(degrees))
    assert outcome.error(stock_latents()) <= LIMIT
    assert outcome.sent == outcome.declared
    if outcome.frames is not None:
        apart = (outcome.frames.int() - stock_frames(stock_latents()).int()).abs()
        assert apart.max() <= 1 and apart.float().mean() <= 0.01
    assert (outcome.frames is not None) == (degrees.vae > 1)


def test_every_pair_is_legal_or_refused_by_name() -> None:
    for pair, degrees in matrix.PAIRS.items():
        assert matrix.rule(degrees) == ("ring-attn2d" if degrees.ring > 1 and degrees.attn2d != (1, 1) else ""), pair


@pytest.mark.parametrize(("name", "degrees"), matrix.REFUSED.items(), ids=str)
def test_what_cannot_be_is_refused_by_name(name: str, degrees: Degrees) -> None:
    with pytest.raises(RequestError) as caught:
        check(tiny_plan(degrees))
    assert caught.value.rule == name and "nearest" in str(caught.value)


def test_the_table_of_compositions_is_that_of_these_tests() -> None:
    def blank(text: str) -> str:
        return re.sub(r"\d(\.\d+)?e[+-]\d+", "E", text)

    everything = dict.fromkeys(matrix.LEGAL + matrix.TRIPLES + matrix.FULL, 0.0)
    assert blank(matrix.DOCUMENT.read_text(encoding="utf-8")) == blank(matrix.table(everything))


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
    [
        Degrees(cfg=2),
        Degrees(ulysses=4),
        Degrees(ring=4),
        Degrees(attn2d=(2, 2)),
        Degrees(attn2d=(1, 4)),
        Degrees(tp=2),
        Degrees(tp=4),
        Degrees(pipefusion=2),
        Degrees(pipefusion=2, tp=2, ulysses=2),
    ],
    ids=str,
)
def test_bfloat16_is_no_less_exact_than_one_process(degrees: Degrees) -> None:
    exact = stock_latents()
    alone = ((stock_latents(dtype="bfloat16") - exact).norm() / exact.norm()).item()
    assert run_plan(tiny_plan(degrees, dtype="bfloat16")).error(exact) <= 1.5 * alone


def test_a_forced_kernel_equals_the_stock_one() -> None:
    assert run_plan(tiny_plan(Degrees()), attention="cpu").error(stock_latents()) <= LIMIT


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
