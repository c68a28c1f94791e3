"""Wan from pictures and the 5B on any number of ranks, with stale patches, and with faults (see test_classes, too)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor

from hybridgen.distributed.comm import Group
from hybridgen.distributed.sequence import Shard
from hybridgen.models.attention import TextAttention
from hybridgen.models.slots import Normed, Pass, Step
from hybridgen.models.wan.image import ImageAttention, WanImage, WanTokenTime
from hybridgen.strategies import registry
from hybridgen.strategies.registry import Degrees
from hybridgen.strategies.tp import run as tp
from tests.support import matrix, stock
from tests.support.checkpoints import LAYERS, Case, run_case, run_stock, stock_latents
from tests.support.patchwise import run_patchwise

LIMIT = 1e-5
EMBEDDED = Case("wan2.1-i2v", 1, frames=9, steps=2, changes=LAYERS)  # 48 tokens
BETWEEN = Case("wan2.1-flf2v", 2, frames=9, steps=2, changes=LAYERS)
EXPERTS = Case("wan2.2-i2v", 1, frames=9, guidance_2=3.0)  # the third step is the second expert's
EXPERTS_BETWEEN = Case("wan2.2-i2v", 2, frames=9, guidance_2=3.0)
TEXT = Case("wan2.2-ti2v", size="128x128", frames=9, steps=2, changes=LAYERS)  # 48 tokens, 16 of them given below
PICTURE = replace(TEXT, images=1)

ALONE = [degrees for degrees in matrix.PARTS.values() if degrees.world > 1]
TOGETHER = [(EMBEDDED, degrees) for degrees in ALONE + matrix.LEGAL]
TOGETHER += [(PICTURE, degrees) for degrees in matrix.LEGAL if degrees.cp == 1]  # how K/V travel is no matter of time
UNEVEN = [  # 30 tokens
    (replace(BETWEEN, size="48x80", frames=5), Degrees(attn2d=(2, 2))),
    (replace(BETWEEN, size="48x80", frames=5), Degrees(cfg=2, tp=2, ulysses=4)),
    (replace(EXPERTS, size="48x80", frames=5), Degrees(ring=4)),
    (replace(PICTURE, size="96x160", frames=5), Degrees(ulysses=4)),
    (replace(PICTURE, size="96x160", frames=5), Degrees(tp=2, ring=4)),
    (replace(TEXT, size="96x160", frames=5), Degrees(ulysses=2, ring=2)),
]
MORE = Degrees(pipefusion=2, tp=2, ulysses=2)

Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("case", [BETWEEN, EXPERTS, PICTURE], ids=str)
def test_one_rank_is_the_stock_pipeline_in_half_precision(case: Case) -> None:
    found = run_case(case, case.plan(dtype="bfloat16")).latents
    assert torch.equal(found, stock_latents(case, "bfloat16"))


def check(case: Case, degrees: Degrees) -> None:
    """The composition's result is one process's, and every rank sends what is declared."""
    plan = case.plan(degrees)
    assert not registry.violations(plan)
    outcome = run_case(case, plan)
    assert outcome.error(stock_latents(case)) <= LIMIT
    assert outcome.sent == outcome.declared


@pytest.mark.parametrize(("case", "degrees"), TOGETHER, ids=str)
def test_strategies_alone_and_in_pairs(case: Case, degrees: Degrees) -> None:
    check(case, degrees)


@pytest.mark.parametrize(("case", "degrees"), UNEVEN, ids=str)
def test_tokens_that_do_not_divide(case: Case, degrees: Degrees) -> None:
    check(case, degrees)


@pytest.mark.parametrize("case", [BETWEEN, EXPERTS_BETWEEN, TEXT], ids=str)
def test_three_together(case: Case) -> None:
    check(case, MORE)


# PipeFusion with stale K/V


@lru_cache
def patchwise(case: Case, patch_size: int) -> Tensor:
    """PipeFusion in one process, patches of so many tokens."""
    pipe = stock.load(case.folder, pictures=case.images > 0)
    run_patchwise(pipe, patch_size, warmup=1)
    return run_stock(case, pipe)


STALE = [
    (replace(EMBEDDED, steps=4), Degrees(pipefusion=2), 5),  # 48 tokens in patches of 10
    (replace(EXPERTS_BETWEEN, steps=5), Degrees(pipefusion=2, tp=2), 2),
    (replace(PICTURE, steps=4), Degrees(pipefusion=2), 2),  # the given tokens are a part of the first patch
    (replace(PICTURE, size="96x160", frames=5, steps=4), Degrees(pipefusion=2, ulysses=2), 4),
    (replace(TEXT, steps=4), Degrees(pipefusion=2, attn2d=(1, 2)), 2),
]


@pytest.mark.parametrize(("case", "degrees", "patches"), STALE, ids=str)
def test_stale_steps_are_those_of_one_process(case: Case, degrees: Degrees, patches: int) -> None:
    plan = case.plan(degrees, patches=patches, warmup=1)
    outcome = run_case(case, plan)
    assert outcome.error(patchwise(case, plan.tokens.patch_size)) <= LIMIT
    assert outcome.error(stock_latents(case)) >= 10 * LIMIT  # it was stale
    assert outcome.sent == outcome.declared


# Faults


def clean_frame_is_the_last(patch: Patch) -> None:
    """Everything that looks up which tokens are given finds the last frame's."""
    set_inputs = WanTokenTime.set_inputs

    def flipped(self: WanTokenTime, *inputs: Any) -> None:
        set_inputs(self, *inputs)
        self._clean = self._clean.flip(2 if self.state.whole else 1)

    patch.setattr(WanTokenTime, "set_inputs", flipped)


def time_of_the_wrong_frame(patch: Patch) -> None:
    time = WanTokenTime.time

    def shifted(self: WanTokenTime, *step: Any) -> tuple[Tensor, Tensor]:
        return tuple(x.flip(1) if x.shape[1] > 6 else x for x in time(self, *step))  # type: ignore[return-value]

    patch.setattr(WanTokenTime, "time", shifted)


def time_of_the_first_patch(patch: Patch) -> None:
    time = WanTokenTime.time

    def first(self: WanTokenTime, step: Step, now: Pass) -> tuple[Tensor, Tensor]:
        return time(self, step, now if now.patch is None else replace(now, patch=0))

    patch.setattr(WanTokenTime, "time", first)


def not_cut(kind: Any) -> Callable[[Patch], None]:
    """Every rank takes the first shard's part of the condition."""

    def plant(patch: Patch) -> None:
        set_inputs = kind.set_inputs

        def first(self: Any, *inputs: Any) -> None:
            shard = self.state.shard
            self.state.shard = Shard(shard.tokens, 0)
            set_inputs(self, *inputs)
            self.state.shard = shard

        patch.setattr(kind, "set_inputs", first)

    return plant


def channels_side_by_side(patch: Patch) -> None:
    """The condition's channels follow those of the whole token, not of each cell."""

    def embed(self: WanImage, x: Tensor, step: Step, now: Pass) -> Tensor:
        given = self.state.here(self._given, now.patch)
        return super(WanImage, self).embed(torch.cat([x, given], -1), step, now)

    patch.setattr(WanImage, "embed", embed)


def without_pictures(patch: Patch) -> None:
    patch.setattr(ImageAttention, "attend", TextAttention.attend)


def pictures_of_another_block(patch: Patch) -> None:
    """K/V of the pictures are kept once for all blocks."""
    key_value, kept = TextAttention.key_value, dict[int, Any]()

    def shared(self: ImageAttention, x: Tensor, *modules: Any) -> Any:
        if x.shape[1] < 64:
            return kept.setdefault(id(x), key_value(self, x, *modules))
        return key_value(self, x, *modules)

    patch.setattr(ImageAttention, "key_value", shared)


def one_picture_twice(patch: Patch) -> None:
    embedded = WanImage.pictures

    def twice(self: WanImage, expert: int) -> Tensor:
        self.inputs.image[1] = self.inputs.image[0]  # type: ignore[index]
        return embedded(self, expert)

    patch.setattr(WanImage, "pictures", twice)


def picture_norm_of_own_heads(patch: Patch) -> None:
    norm = tp.norm_over_ranks

    def alone(group: Group, *pairs: Normed) -> list[Tensor]:
        right = norm(group, *pairs)
        if pairs[0][1].shape[1] != 17:
            return right
        return [torch.rms_norm(x, x.shape[-1:], module.weight, module.eps) for module, x in pairs]

    patch.setattr(tp, "norm_over_ranks", alone)


def no_mask_at_the_end(patch: Patch) -> None:
    mask = WanImage.mask

    def first_only(self: WanImage) -> Tensor:
        found = mask(self)
        found[:, :, 1:] = 0
        return found

    patch.setattr(WanImage, "mask", first_only)


def given_frame_from_the_scheduler(patch: Patch) -> None:
    patch.setattr(WanTokenTime, "final_latents", lambda self, latents: latents)


ONE, ULYSSES, TP = Degrees(), Degrees(ulysses=2), Degrees(tp=2)
FAULTS = {
    "the wrong frame is given": (clean_frame_is_the_last, PICTURE, ONE),
    "the wrong frame is given, on two ranks": (clean_frame_is_the_last, PICTURE, ULYSSES),
    "the wrong frame has timestep 0": (time_of_the_wrong_frame, PICTURE, ONE),
    "the wrong frame has timestep 0, on two ranks": (time_of_the_wrong_frame, PICTURE, ULYSSES),
    "the given frame stands on every rank": (not_cut(WanTokenTime), PICTURE, ULYSSES),
    "the condition is not cut": (not_cut(WanImage), EXPERTS, ULYSSES),
    "channels of the condition are interleaved wrongly": (channels_side_by_side, EMBEDDED, ULYSSES),
    "nothing attends to the picture": (without_pictures, EMBEDDED, ONE),
    "blocks share the K/V of the picture": (pictures_of_another_block, EMBEDDED, ONE),
    "the last picture is embedded as the first": (one_picture_twice, BETWEEN, ONE),
    "the norm of the picture's K sees own heads alone": (picture_norm_of_own_heads, EMBEDDED, TP),
    "the mask leaves out the last picture": (no_mask_at_the_end, EXPERTS_BETWEEN, ONE),
    "the given frame is not put back": (given_frame_from_the_scheduler, PICTURE, ULYSSES),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen(fault: str, monkeypatch: Patch) -> None:
    plant, case, degrees = FAULTS[fault]
    reference, plan = stock_latents(case), case.plan(degrees)
    plant(monkeypatch)  # ranks are forked, so they inherit it
    assert run_case(case, plan).error(reference) >= 100 * LIMIT


def test_patches_with_the_time_of_another_are_seen(monkeypatch: Patch) -> None:
    case, degrees, patches = STALE[2]
    plan = case.plan(degrees, patches=patches, warmup=1)
    reference = patchwise(case, plan.tokens.patch_size)
    time_of_the_first_patch(monkeypatch)
    assert run_case(case, plan).error(reference) >= 100 * LIMIT
