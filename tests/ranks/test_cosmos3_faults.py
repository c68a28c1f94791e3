"""Faults made on purpose in Cosmos 3 are seen."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hybridgen.distributed.sequence import Shard
from hybridgen.models.cosmos3.denoiser import Cosmos3
from hybridgen.models.denoiser import Denoiser
from hybridgen.models.inputs import Inputs
from hybridgen.models.slots import KeyValue, Partial, Pass, Step
from hybridgen.strategies.registry import Degrees
from hybridgen.strategies.ulysses import run as ulysses
from tests.support.checkpoints import LAYERS, Case, run_case, stock_latents

LIMIT = 1e-5
HARD = Case("cosmos3", images=1, size="48x144", frames=9, steps=2, changes=LAYERS)
"""3 x 9 x 3 latent cells: padded to 2 x 5 x 3 = 30 tokens, of which 10 are a given frame's; two K/V heads."""
TEXT = Case("cosmos3", size="48x80", frames=9, steps=3, changes=LAYERS)
Patch = pytest.MonkeyPatch


def shorter_text_is_padded(patch: Patch) -> None:
    set_inputs = Cosmos3.set_inputs

    def padded(self: Cosmos3, inputs: Inputs) -> None:
        longest = max(ids.shape[1] for ids in inputs.text)
        text = [torch.nn.functional.pad(ids, (0, longest - ids.shape[1])) for ids in inputs.text]
        set_inputs(self, replace(inputs, text=text))

    patch.setattr(Cosmos3, "set_inputs", padded)


def text_counts_twice(patch: Patch) -> None:
    attend = Denoiser.attend_text

    def twice(self: Denoiser, q: Tensor, text: KeyValue | None) -> list[Partial]:
        return attend(self, q, text) * 2

    patch.setattr(Denoiser, "attend_text", twice)


def text_is_missing(patch: Patch) -> None:
    patch.setattr(Denoiser, "attend_text", lambda self, q, text: [])


def positions_after_the_other_text(patch: Patch) -> None:
    condition = Cosmos3.condition
    patch.setattr(Cosmos3, "condition", lambda self, step, now: condition(self, step, replace(now, branch=0)))


def positions_of_the_first_shard(patch: Patch) -> None:
    take = Shard.take

    def first(self: Shard, full: Tensor, dim: int = 1) -> Tensor:
        return take(self if full.dim() == 3 else replace(self, index=0), full, dim)  # the state has three dims

    patch.setattr(Shard, "take", first)


def given_frame_has_a_time(patch: Patch) -> None:
    embed = Cosmos3.embed

    def everywhere(self: Cosmos3, x: Tensor, step: Step, now: Pass) -> Tensor:
        mask, self._mask = self._mask, None
        try:
            return embed(self, x, step, now)
        finally:
            self._mask = mask

    patch.setattr(Cosmos3, "embed", everywhere)


def padding_moves(patch: Patch) -> None:
    patch.setattr(Cosmos3, "denoised", lambda self: None)


def text_of_the_first_heads(patch: Patch) -> None:
    own = ulysses.own_heads
    patch.setattr(ulysses, "own_heads", lambda text, group: own(text, replace(group, rank=0)))


def given_frame_is_not_masked(patch: Patch) -> None:
    patch.setattr(Cosmos3, "combine", Denoiser.combine)


FAULTS = {
    "the shorter text is padded": (shorter_text_is_padded, TEXT, Degrees(cfg=2)),
    "text counts twice in the ring": (text_counts_twice, TEXT, Degrees(ring=2)),
    "text counts twice in attention2d": (text_counts_twice, TEXT, Degrees(attn2d=(1, 2))),
    "the ring leaves the text out": (text_is_missing, TEXT, Degrees(ring=2)),
    "positions follow the other branch's text": (positions_after_the_other_text, TEXT, Degrees(ring=2)),
    "every rank takes the first shard's positions": (positions_of_the_first_shard, TEXT, Degrees(ulysses=2)),
    "the given frame has a time": (given_frame_has_a_time, HARD, Degrees(ulysses=2)),
    "the given frame is denoised": (given_frame_is_not_masked, HARD, Degrees(ulysses=2)),
    "cells of padding are denoised": (padding_moves, TEXT, Degrees(ulysses=2)),
    "every rank takes the text of the first heads": (text_of_the_first_heads, TEXT, Degrees(ulysses=2)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen(fault: str, monkeypatch: Patch) -> None:
    plant, case, degrees = FAULTS[fault]
    reference = stock_latents(case)
    plant(monkeypatch)  # ranks are forked, so they inherit it
    assert run_case(case, case.plan(degrees)).error(reference) >= 100 * LIMIT
