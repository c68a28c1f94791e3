"""Measure what the planner's cost model needs to know of this machine, on ranks of its own.

Compute is measured on one block of the model that is to be planned for, with random weights, by one rank alone: its
matrix products and its attention apart, all the rest as what is left of a whole block. Then all ranks run it at once,
which tells what they take from each other. Exchanges are measured at two sizes, and a line through the two gives
latency and bandwidth. Every figure is the median of several rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from hybridgen.distributed.attention import attend_plain
from hybridgen.distributed.comm import Group
from hybridgen.distributed.processes import RankContext, run_local
from hybridgen.distributed.sequence import Shard
from hybridgen.engine.job import Job
from hybridgen.engine.rank import quiet_libraries, set_up
from hybridgen.models.inputs import Inputs
from hybridgen.models.slots import Pass
from hybridgen.models.wan.denoiser import Wan
from hybridgen.models.wan.facts import WanTransformer
from hybridgen.models.wan.random import transformer
from hybridgen.plan.facts import ModelFacts
from hybridgen.plan.kernels import Kernel, select
from hybridgen.plan.plan import Clip, Plan
from hybridgen.planner.price import compute
from hybridgen.planner.price.cost import slowest as slowest_of
from hybridgen.strategies.registry import Degrees

ROUNDS, ENOUGH = 9, 3.0
"""Rounds of a measurement, and the seconds after which fewer (at least three) are enough."""
SIDE = 256
"""Pixels per side of the clip that is timed."""
SMALL, LARGE = 64 << 10, 8 << 20
"""Bytes that a rank sends in an exchange, for both sizes that are timed."""
PASSES = 3.7
"""How many times the bytes of norms, rope, residuals and activations are taken to be moved."""
TINY = WanTransformer(layers=1, heads=2, head_dim=16, ffn=64, text_dim=16)
"""A transformer so small that only starting its kernels takes time."""


@dataclass(frozen=True)
class Settings:
    """Settings of a calibration."""

    facts: ModelFacts
    dtype: str
    device: str
    world: int
    tokens: int
    """Tokens of the clip that is timed."""

    @property
    def kernel(self) -> Kernel:
        return select("auto", self.device, self.dtype, self.facts.transformer.head_dim, merged=False)

    def plan(self, tokens: int, degrees: Degrees = Degrees()) -> Plan:
        """A plan that runs about this many tokens through one block, once."""
        transformer = replace(self.facts.transformer, layers=1)
        facts = replace(self.facts, transformer=transformer, experts=1, boundary=None)
        frames = max(tokens // facts.token_count(SIDE, SIDE, 1), 1)
        stride = facts.vae.stride_time
        return Plan(facts, Clip(SIDE, SIDE, stride * (frames - 1) + 1, 1, 1.0), degrees, dtype=self.dtype)


class Figure(NamedTuple):
    """One constant, in SI units, and how it was found."""

    value: float
    how: str


def run(settings: Settings) -> dict[str, Figure]:
    """Calibrate on ranks of this machine. Raises RunFailed."""
    method = "fork" if settings.device == "cpu" else "spawn"
    found: dict[str, Figure] = run_local(settings.world, partial(measure, settings=settings), start_method=method)[0]
    return found


@torch.no_grad()
def measure(context: RankContext, settings: Settings) -> dict[str, Figure]:
    """Measure every constant, by its name in a hardware file; rank 0's result counts."""
    quiet_libraries()
    plan = settings.plan(settings.tokens, Degrees(ulysses=settings.world))
    rank = set_up(context, Job(plan, settings.kernel, settings.device, "", "", 0, Path(), quiet=True))
    block = Block(settings.plan(settings.tokens), settings.kernel, rank.device)
    found, alone = {}, 0.0
    if rank.first:
        found = rates(block, settings)
        alone = seconds(block.run, block.device)
    if settings.world > 1:
        dist.barrier()
        together = slowest(block.run, block.device)
        how = f"measured: a block on {settings.world} ranks at once against one alone"
        lost = max(together / alone - 1, 0.0) if rank.first else 0.0
        found["slowdown"] = Figure(lost / slowest_of(settings.world), how)
        found |= exchanges(rank.mesh.group("ulysses", "calibrate"), block.device)
    return found


def seconds(work: Callable[[], object], device: torch.device, least: int = 3) -> float:
    """Median time of `work` on this rank, after a round that warms up."""
    times: list[float] = []
    while len(times) <= least or (len(times) <= ROUNDS and sum(times) < ENOUGH):
        start = _now(device)
        work()
        times.append(_now(device) - start)
    return median(times[1:])


def slowest(work: Callable[[], object], device: torch.device) -> float:
    """Median time of `work` with all ranks at work: each round ends with the slowest, and all run equally many."""
    times = []
    for _ in range(ROUNDS):
        dist.barrier()
        start = _now(device)
        work()
        taken = torch.tensor(_now(device) - start, dtype=torch.float64, device=device)
        dist.all_reduce(taken, dist.ReduceOp.MAX)
        times.append(taken.item())
    return median(times[1:])


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def rates(block: Block, settings: Settings) -> dict[str, Figure]:
    """Rates of one rank while all others are idle."""
    plan, device = block.plan, block.device
    attention, matmul = seconds(block.attention, device), seconds(block.matmul, device)
    whole = seconds(block.run, device)
    rest = max(whole - attention - matmul, 0.02 * whole)
    flops = compute.attention_flops(plan) + compute.cross_attention_flops(plan)
    moved = PASSES * compute.other_bytes(plan)
    where = f"measured: a block of {settings.facts.name}, {plan.tokens.tokens} tokens, {settings.dtype}"
    least = Block(replace(plan, facts=replace(plan.facts, transformer=TINY, text_tokens=8)), settings.kernel, device)
    return {
        "attention": Figure(flops / attention, where),
        "matmul": Figure(compute.matmul_flops(plan) / matmul, where),
        "float32": Figure(1.0, f"the rates above are those of {settings.dtype}"),
        "bandwidth": Figure(moved / rest, f"{where}, without its attention and matrix products"),
        "passes": Figure(PASSES, "assumed; the bandwidth was measured with it"),
        "launch": Figure(seconds(least.run_few, device, 20) / compute.KERNELS, "measured: a block of 32 channels"),
        "step": Figure(seconds(block.step, device), f"{where.split(':')[0]}: a step without blocks"),
    }


def exchanges(group: Group, device: torch.device) -> dict[str, Figure]:
    """Latency and bandwidth of collectives, and what a hop to the next rank takes beyond its bytes."""

    def all_to_all(size: int) -> Callable[[], object]:
        x = torch.zeros(group.size, size // 4 // (group.size - 1), device=device)
        return lambda: group.all_to_all(x)

    def gather(size: int) -> Callable[[], object]:
        x = torch.zeros(1, size // 4 // (group.size - 1), device=device)
        return lambda: group.all_gather(x)

    def hop(size: int) -> Callable[[], object]:
        x = torch.zeros(size // 4, device=device)
        return lambda: group.start_shift(x)[1]()

    found = {}
    for name, kind in (("all-to-all", all_to_all), ("all-gather", gather), ("hop", hop)):
        few, many = slowest(kind(SMALL), device), slowest(kind(LARGE), device)
        per_byte = max(many - few, 1e-9) / (LARGE - SMALL)
        found[name] = max(few - SMALL * per_byte, 0.0), 1 / per_byte
    (exchange, by_exchange), (gathering, by_gather), (shift, _) = found.values()
    how = f"measured: {group.size} ranks, {SMALL >> 10} KiB and {LARGE >> 20} MiB"
    return {
        "inside.latency": Figure((exchange + gathering) / 2, f"{how}, all-to-all and all-gather"),
        "inside.bandwidth": Figure(2 / (1 / by_exchange + 1 / by_gather), f"{how}, all-to-all and all-gather"),
        "inside.hop": Figure(shift, f"{how}, to the next rank"),
    }


class Block:
    """One transformer block of a model, and what surrounds it, with random weights."""

    def __init__(self, plan: Plan, kernel: Kernel, device: torch.device) -> None:
        from diffusers import UniPCMultistepScheduler

        facts, dtype = plan.facts.transformer, getattr(torch, plan.dtype)
        self.plan, self.kernel, self.device = plan, kernel, device
        self.expert = transformer(facts, dtype).to(device)
        scheduler = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True)
        self.model = Wan(plan, [self.expert], scheduler, kernel, Shard(plan.tokens, 0))
        text = torch.randn(1, plan.facts.text_tokens, facts.text_dim, device=device, dtype=dtype)
        self.model.set_inputs(Inputs([text]))
        self.first = self.model.schedule()[0]
        self.condition = self.model.condition(self.first, Pass())
        self.x = torch.randn(1, *plan.latent_shape, device=device)
        self.hidden = self.model.embed(self.x, self.first, Pass())
        heads, kv = (plan.tokens.tokens, facts.heads), (plan.facts.text_tokens, facts.key_heads)
        self.qkv = [self._random(n, h) for n, h in (heads, (heads[0], kv[1]), (heads[0], kv[1]))]
        self.text_kv = [self._random(*kv) for _ in range(2)]

    def _random(self, tokens: int, heads: int) -> Tensor:
        shape = (1, tokens, heads, self.plan.facts.transformer.head_dim)
        return torch.randn(shape, device=self.device, dtype=self.hidden.dtype)

    def run(self) -> Tensor:
        return self.model.run_blocks(self.hidden, self.first, self.condition, Pass())

    def run_few(self) -> Tensor:
        """Run the block on 16 tokens."""
        cos, sin = (table[:, :16] for table in self.condition.rope)
        return self.model.run_blocks(self.hidden[:, :16], self.first, replace(self.condition, rope=(cos, sin)), Pass())

    def attention(self) -> None:
        """Run attention to the video's keys and to the text's."""
        attend_plain(self.kernel, *self.qkv)
        if self.plan.facts.transformer.cross_attention:
            q, k, v = (x.transpose(1, 2) for x in (self.qkv[0], *self.text_kv))
            F.scaled_dot_product_attention(q, k, v)

    def matmul(self) -> None:
        block, x = self.expert.blocks[0], self.hidden
        for own in (block.attn1.to_q, block.attn1.to_k, block.attn1.to_v, block.attn1.to_out[0]):
            own(x)
        for cross in (block.attn2.to_q, block.attn2.to_out[0]):
            cross(x)
        up, down = block.ffn.net[0].proj, block.ffn.net[2]
        down(up(x))

    def step(self) -> None:
        """Run a denoising step without any block."""
        slots, layers = self.model.slots, self.model.slots.layers
        slots.layers = range(0)
        self.model.scheduler.set_begin_index(0)
        self.model.scheduler._step_index = None
        slots.advance(self.x, slots.predict(self.x, self.first), self.first)
        slots.layers = layers
