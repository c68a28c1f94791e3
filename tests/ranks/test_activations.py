"""What the planner says a block holds, against the tensors it makes on the meta device, split as a plan says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor

from hybridgen.distributed.sequence import Shard
from hybridgen.models import catalogue
from hybridgen.models.cosmos import denoiser as cosmos
from hybridgen.models.registry import family_of
from hybridgen.models.slots import Pass
from hybridgen.models.wan import denoiser as wan
from hybridgen.plan.facts import ModelFacts
from hybridgen.plan.kernels import KERNELS
from hybridgen.plan.plan import Plan
from hybridgen.planner.price import memory
from hybridgen.recipe.clip import clip_of
from hybridgen.recipe.fields import Request
from hybridgen.strategies import registry
from hybridgen.strategies.registry import Degrees
from tests.ranks.test_known import blocks, transformer
from tests.support.live_bytes import LiveBytes

NAMES = ("wan2.2", "wan2.1-1.3b", "wan2.2-5b", "cosmos2.5", "cosmos-predict2-14b-text2image", "cosmos3-nano", "cosmos3")
SPLITS: tuple[dict[str, Any], ...] = (
    {},
    {"tp": 2},
    {"tp": 4},
    {"ulysses": 4},
    {"ring": 2},
    {"ring": 4},
    {"attn2d": (4, 1)},
    {"attn2d": (1, 4)},
    {"attn2d": (3, 3)},
    {"ulysses": 2, "ring": 2},
    {"ulysses": 2, "attn2d": (2, 2)},
    {"tp": 2, "attn2d": (2, 2)},
    {"pipefusion": 2, "attn2d": (4, 1)},
    {"pipefusion": 2, "attn2d": (2, 2)},
    {"pipefusion": 2, "attn2d": (1, 4)},
    {"pipefusion": 2, "ulysses": 2, "ring": 2},
)
SPLITS_OF = {"bfloat16": SPLITS, "float32": SPLITS[::4]}
"""Splits by dtype: numbers of twice the size change what blocks hold in the same way under all of them."""
TEXT = 512


class Alone:
    """One rank of a group whose others send as much as it does."""

    rank = 0

    def __init__(self, size: int) -> None:
        self.size = size

    def all_reduce(self, x: Tensor) -> Tensor:
        return x.contiguous()

    def all_to_all(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        return torch.empty_like(x)

    def all_gather(self, x: Tensor) -> Tensor:
        return x.contiguous().new_empty(self.size, *x.shape)

    def start_shift(self, x: Tensor) -> tuple[Tensor, Callable[[], None]]:
        return torch.empty_like(x), lambda: None


class Mesh:
    """The groups of rank 0."""

    def __init__(self, plan: Plan) -> None:
        self.degrees = plan.degrees

    def group(self, axis: str, strategy: str) -> Alone:
        return Alone(self.degrees.size(axis))

    def coordinate(self, axis: str) -> int:
        return 0


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention makes its output and nothing else."""

    def attend(_: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return torch.empty_like(q), q.new_empty((*q.shape[:3], 1), dtype=torch.float32)

    monkeypatch.setattr("hybridgen.models.denoiser.attend", attend)
    monkeypatch.setattr("hybridgen.models.denoiser.attend_plain", lambda *args: attend(*args)[0])
    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", lambda q, k, v: torch.empty_like(q))


def one_block(facts: ModelFacts, dtype: str, degrees: dict[str, Any]) -> Any:
    """A rank's model with one block, on the meta device, cut and wrapped by its strategies."""
    facts = replace(facts, transformer=replace(facts.transformer, layers=1), experts=1)
    plan = Plan(facts, clip_of(Request(), facts), Degrees(**degrees), dtype=dtype).with_options(patches=4)
    expert = transformer(facts).to(getattr(torch, dtype))
    for block in blocks(expert):
        if hasattr(block, "scale_shift_table"):  # kept in fp32, as from_pretrained does
            block.scale_shift_table.data = block.scale_shift_table.data.float()
    model = family_of(facts).denoiser(facts)(plan, [expert], MagicMock(), KERNELS[0], Shard(plan.tokens, 0))
    for strategy in registry.active(plan):
        if strategy.name != "pipefusion":  # which changes what runs through a block, not the block
            strategy.apply(model, Mesh(plan), plan)  # type: ignore[arg-type]
    return model


def block_inputs(model: Any) -> tuple[list[Tensor], list[Tensor], Any]:
    """(what is counted as activations, what is counted elsewhere, the block's condition) of a model's clip."""
    plan, facts = model.plan, model.plan.facts.transformer
    tokens, kind = plan.tokens.local_size, getattr(torch, plan.dtype)
    per_token = (tokens,) if facts.token_time else ()

    def empty(*shape: int, dtype: torch.dtype = kind) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    hidden = empty(1, tokens, facts.hidden)
    if facts.text_stream == "own":
        rope, text = empty(1, tokens, 1, facts.head_dim), empty(1, TEXT, plan.heads[1], facts.head_dim)
        model.text.kept = {(0, 0): (text, text)}
        return [hidden], [rope, text], (rope, rope)
    if facts.adaln:
        rope, text = empty(tokens, 1, facts.head_dim // 2, dtype=torch.float32), empty(1, TEXT, facts.text_width)
        time, modulation = (empty(1, *per_token, count * facts.hidden) for count in (1, 3))
        return [hidden, time, modulation], [rope, text], cosmos.Condition(time, modulation, text, (rope, rope))
    rope, text = empty(1, tokens, 1, facts.head_dim, dtype=torch.float32), empty(1, TEXT, facts.hidden)
    time, modulation = empty(1, *(per_token or (1,)), facts.hidden), empty(1, *per_token, 6, facts.hidden)
    return [hidden, time, modulation], [rope, text], wan.Condition(time, modulation, text, (rope, rope))


def most_held(model: Any) -> int:
    """Bytes, but for weights, rope's tables and what is kept of the text."""
    held, known, condition = block_inputs(model)
    (block,) = model.blocks()
    with torch.no_grad():
        model.run_block(block, held[0], condition, Pass())  # so that the text's K and V are there
        processor = getattr(getattr(block, "attn2", None), "processor", None)
        kept = [x for pair in processor.kept.values() for x in pair] if processor else []
        with LiveBytes(held, [*block.parameters(), *known, *kept]) as count:
            model.run_block(block, held[0], condition, Pass())
    peak: int = count.peak
    return peak


@pytest.mark.parametrize("dtype", SPLITS_OF)
@pytest.mark.parametrize("name", NAMES)
def test_activations_and_buffers_are_what_a_block_holds(name: str, dtype: str) -> None:
    """As it is, and with a feed-forward layer so small that attention decides."""
    facts = catalogue.find(name)
    thin = replace(facts, transformer=replace(facts.transformer, ffn=facts.transformer.hidden))
    for degrees in SPLITS_OF[dtype]:
        for one in (facts, thin):
            model = one_block(one, dtype, degrees)
            declared = sum(term.size for term in memory.terms(model.plan) if term.moment and term.moment != "step")
            assert declared == pytest.approx(most_held(model), rel=0.03), (degrees, one.transformer.ffn)


def test_the_moment_in_which_most_is_held_is_told() -> None:
    """Wan 14B in bf16 holds most at the gate of its feed-forward layer; a large grid of attention2d, in attention."""
    facts = catalogue.find("wan2.2")

    def held(**degrees: Any) -> set[str]:
        plan = Plan(facts, clip_of(Request(), facts), Degrees(**degrees))
        return {f"{term.moment} {term.name}" for term in memory.terms(plan) if term.moment}

    assert held() == held(tp=8) == held(ulysses=8, tp=2, cfg=2) == {"block activations"}
    assert held(attn2d=(3, 3)) == {"attention activations", "attention attention2d buffers"}
