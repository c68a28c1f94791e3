"""Which widths of the parallel VAE are legal, and what they cost."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLWan

from hybridgen.models.catalogue import find
from hybridgen.models.wan.vae_facts import WanVae
from hybridgen.plan.plan import Clip, Plan
from hybridgen.strategies.parallel_vae import rules
from hybridgen.strategies.registry import Degrees
from tests.support.tiny_vae import WAN22_5B, config


@pytest.mark.parametrize(
    ("degrees", "size", "rule", "options"),
    [
        (Degrees(cfg=2, ulysses=4, vae=4), (1280, 720), None, ()),
        (Degrees(cfg=2, ulysses=4, vae=8), (1280, 720), None, ()),
        (Degrees(cfg=2, ulysses=4, vae=5), (1280, 720), "vae-width", (4, 8)),
        (Degrees(cfg=2, ulysses=4, vae=7), (1280, 720), "vae-width", (8, 4)),
        (Degrees(ulysses=4, vae=5), (1280, 720), "vae-width", (4,)),
        (Degrees(ulysses=4, vae=0), (1280, 720), "vae-width", (1,)),
        (Degrees(ulysses=8, vae=8), (48, 64), None, ()),
        (Degrees(ulysses=8, vae=8), (48, 32), "vae-rows", (6,)),
        (Degrees(cfg=2, ulysses=4, vae=8), (32, 48), "vae-rows", (4,)),
    ],
)
def test_width_is_checked(degrees: Degrees, size: tuple[int, int], rule: str | None, options: Any) -> None:
    found = list(rules.violations(Plan(find("wan2.2"), Clip(*size, 81, 40, 5.0), degrees)))
    assert [(v.rule, v.nearest) for v in found] == ([(rule, options)] if rule else [])
    assert all(f"--vae {degrees.vae}: " in v.message and v.rule in rules.RULES for v in found)


@pytest.mark.parametrize("vae", [WanVae(), WAN22_5B, find("demo").vae], ids=["2.1", "2.2 5B", "demo"])
def test_rules_know_the_decoder(vae: WanVae) -> None:
    with torch.device("meta"):
        decoder = AutoencoderKLWan(**config(vae)).decoder
    convs = [m for m in decoder.modules() if getattr(m, "kernel_size", ())[-2:] == (3, 3)]
    assert sorted(m.in_channels for m in convs) == sorted(x.channels for x in vae.decoder.layers)


def test_traffic_of_72_ranks_is_that_of_halos() -> None:
    degrees = Degrees(cfg=2, ulysses=4, attn2d=(3, 3), vae=72)
    plan = Plan(find("wan2.2"), Clip(1280, 720, 81, 40, 5.0), degrees)
    messages = list(rules.traffic(plan, 5))
    assert {m.axis for m in messages} == {"vae"} and {m.strategy for m in messages} == {"parallel-vae"}
    inner, edge = (sum(m.total for m in rules.traffic(plan, r) if "halo" in m.tensor) for r in (5, 71))
    assert inner == 2 * edge


def test_memory_shrinks_with_the_strip() -> None:
    sizes = []
    for ranks in (1, 2, 4, 8):
        plan = Plan(find("wan2.2"), Clip(1280, 720, 81, 40, 1.0), Degrees(cfg=2, ulysses=8, vae=ranks))
        sizes.append(sum(term.size for term in rules.memory(plan, 0)))
        assert not list(rules.memory(plan, 8))
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > 7 * sizes[-1] > 0
