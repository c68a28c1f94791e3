"""The exactness check can fail: faults made on purpose move the result by at least 100 times its limit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from hybridgen.distributed.attention import Merge
from hybridgen.distributed.comm import Group
from hybridgen.distributed.mesh import Mesh
from hybridgen.models.slots import Pass, Step
from hybridgen.models.wan.denoiser import Condition, Wan
from hybridgen.plan.layout import Layout, TokenShards
from hybridgen.plan.plan import Clip
from hybridgen.strategies.registry import Degrees
from hybridgen.strategies.tp import run as tp
from hybridgen.strategies.ulysses import run as ulysses
from tests.support.tiny import CLIP, run_plan, stock_latents, tiny_plan

LIMIT = 1e-5
UNEVEN = Clip(48, 48, 5, 2, 4.0)  # 18 tokens: padding on 4 ranks

Patch = pytest.MonkeyPatch


def drop_ring_block(patch: Patch) -> None:
    add = Merge.add

    def first_only(self: Merge, out: torch.Tensor, lse: torch.Tensor) -> None:
        if self.out is None:
            add(self, out, lse)

    patch.setattr(Merge, "add", first_only)


def swap_shards(patch: Patch) -> None:
    index = Layout.sequence_index
    patch.setattr(Layout, "sequence_index", lambda self, rank: {0: 1, 1: 0}.get(index(self, rank), index(self, rank)))


def zero_lse(patch: Patch) -> None:
    attend = Wan.attend_blocks

    def lying(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = attend(*arguments)
        return out, torch.zeros_like(lse)

    patch.setattr(Wan, "attend_blocks", lying)


def attend_padding(patch: Patch) -> None:
    patch.setattr(TokenShards, "valid_local", lambda self, index, width=1: width * self.local_size)
    local = Wan.local_attention

    def unmasked(self: Wan, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> torch.Tensor:
        tokens = self.plan.tokens
        object.__setattr__(tokens, "tokens", tokens.padded)
        try:
            return local(self, q, k, v, *rest)
        finally:
            object.__setattr__(tokens, "tokens", 18)

    patch.setattr(Wan, "local_attention", unmasked)


def shift_rope(patch: Patch) -> None:
    condition = Wan.condition

    def shifted(self: Wan, step: Step, now: Pass) -> Condition:
        right = condition(self, step, now)
        cos, sin = right.rope
        return Condition(right.time, right.modulation, right.text, (cos.roll(1, 1), sin.roll(1, 1)))

    patch.setattr(Wan, "condition", shifted)


def same_rope_everywhere(patch: Patch) -> None:
    condition = Wan.condition

    def first_shard(self: Wan, step: Step, now: Pass) -> Condition:
        own = self.state.shard
        self.state.shard = replace(own, index=0)
        try:
            return condition(self, step, now)
        finally:
            self.state.shard = own

    patch.setattr(Wan, "condition", first_shard)


def wrong_group(patch: Patch) -> None:
    group = Mesh.group

    def swapped(self: Mesh, axis: str, strategy: str) -> Group:
        return group(self, {"ulysses": "cfg", "cfg": "ulysses"}.get(axis, axis), strategy)

    patch.setattr(Mesh, "group", swapped)


def other_branch(patch: Patch) -> None:
    condition = Wan.condition
    patch.setattr(Wan, "condition", lambda self, step, now: condition(self, step, Pass()))


def first_expert_always(patch: Patch) -> None:
    schedule = Wan.schedule

    def stuck(self: Wan) -> list[Step]:
        return [Step(s.index, s.timestep, 0, s.guidance) for s in schedule(self)]

    patch.setattr(Wan, "schedule", stuck)


def heads_back_in_the_wrong_order(patch: Patch) -> None:
    gather = ulysses.gather_heads
    patch.setattr(ulysses, "gather_heads", lambda out, group, patches: gather(out, group, patches).flip(2))


def partials_to_the_wrong_owner(patch: Patch) -> None:
    exchange = Group.all_to_all
    patch.setattr(Group, "all_to_all", lambda self, x: exchange(self, x.flip(0)))


def bias_on_every_tp_rank(patch: Patch) -> None:
    def forward(self: tp.RowLinear, x: torch.Tensor) -> torch.Tensor:
        return self.group.all_reduce(torch.nn.functional.linear(x, self.weight, self.bias))

    patch.setattr(tp.RowLinear, "forward", forward)


def norm_of_own_heads_only(patch: Patch) -> None:
    norm = tp.norm_over_ranks

    def alone(group: Group, *pairs: Any) -> list[torch.Tensor]:
        lonely = Group("tp", (0,), 0, group.traffic)
        object.__setattr__(lonely, "all_reduce", lambda x: x)
        return norm(lonely, *pairs)

    patch.setattr(tp, "norm_over_ranks", alone)


FAULTS = {
    "a ring block is dropped": (drop_ring_block, Degrees(ring=2), CLIP),
    "two shards are swapped": (swap_shards, Degrees(ulysses=2), CLIP),
    "ring merges a zero LSE": (zero_lse, Degrees(ring=2), CLIP),
    "attention2d merges a zero LSE": (zero_lse, Degrees(attn2d=(1, 2)), CLIP),
    "ulysses attends padding": (attend_padding, Degrees(ulysses=4), UNEVEN),
    "ring attends padding": (attend_padding, Degrees(ring=4), UNEVEN),
    "attention2d attends padding": (attend_padding, Degrees(attn2d=(2, 2)), UNEVEN),
    "rope is shifted by one token": (shift_rope, Degrees(ring=2), CLIP),
    "every rank takes the first shard's rope": (same_rope_everywhere, Degrees(ulysses=2), CLIP),
    "ulysses runs over the group of cfg": (wrong_group, Degrees(cfg=2, ulysses=2), CLIP),
    "both branches read the prompt": (other_branch, Degrees(cfg=2), CLIP),
    "the second expert never runs": (first_expert_always, Degrees(ulysses=2), CLIP),
    "heads come back in the wrong order": (heads_back_in_the_wrong_order, Degrees(ulysses=2), CLIP),
    "every tp rank adds the bias": (bias_on_every_tp_rank, Degrees(tp=2), CLIP),
    "a tp rank norms its own heads alone": (norm_of_own_heads_only, Degrees(tp=2), CLIP),
    "partial outputs go to the wrong rank": (partials_to_the_wrong_owner, Degrees(attn2d=(1, 2)), CLIP),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen(fault: str, monkeypatch: Patch) -> None:
    plant, degrees, clip = FAULTS[fault]
    reference = stock_latents(clip)
    plant(monkeypatch)  # ranks are forked, so they inherit it
    assert run_plan(tiny_plan(degrees, clip)).error(reference) >= 100 * LIMIT
