"""What is timed against each other: one request made by hybridgen on some plan, or by diffusers' pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.turns import Contender, Run
from hybridgen.distributed.peak_memory import PeakMemory
from hybridgen.distributed.processes import RankContext
from hybridgen.distributed.sequence import Shard
from hybridgen.engine.denoise import denoise, gather_latents
from hybridgen.engine.rank import set_up
from hybridgen.engine.worker import apply_strategies
from hybridgen.models.inputs import Inputs
from hybridgen.models.wan import random as wan_random
from hybridgen.models.wan.denoiser import Wan
from hybridgen.models.wan.facts import WanTransformer
from hybridgen.models.wan.vae_facts import VAE_21
from hybridgen.plan.facts import ModelFacts, TransformerFacts
from hybridgen.plan.plan import Clip, Plan
from hybridgen.strategies.registry import Degrees
from tests.support.tiny import SEED, noise, scheduler, tiny_job

SIDE = 256
"""Pixels per side of the clip that is denoised."""
FRAME_TOKENS = (SIDE // 16) ** 2
"""Tokens of one of its latent frames."""
GUIDANCE = 4.0


@dataclass(frozen=True)
class Size:
    """What is made. As command-line options: --tokens, --layers and so on."""

    tokens: int = 6144
    layers: int = 4
    heads: int = 8
    head_dim: int = 32
    steps: int = 1
    decode_side: int = 128
    """Pixels per side of the clip that is decoded."""
    decode_frames: int = 5

    @property
    def facts(self) -> ModelFacts:
        hidden = self.heads * self.head_dim
        transformer = WanTransformer(self.layers, self.heads, self.head_dim, ffn=11 * hidden // 4, text_dim=64)
        return ModelFacts("random weights", "wan", "none", transformer, VAE_21, text_tokens=64)

    def plan(self, degrees: Degrees) -> Plan:
        """To denoise."""
        frames = 4 * (self.tokens // FRAME_TOKENS - 1) + 1
        return self._plan(Clip(SIDE, SIDE, frames, self.steps, GUIDANCE), degrees)

    def decode_plan(self, degrees: Degrees) -> Plan:
        side = self.decode_side
        return self._plan(Clip(side, side, self.decode_frames, self.steps, GUIDANCE), degrees)

    def _plan(self, clip: Clip, degrees: Degrees) -> Plan:
        return Plan(self.facts, clip, degrees, dtype="float32")


def transformer(facts: TransformerFacts) -> Any:
    torch.manual_seed(SEED)
    return wan_random.transformer(facts)


def vae() -> Any:
    """Wan 2.1's autoencoder in its full width."""
    from diffusers import AutoencoderKLWan

    torch.manual_seed(SEED)
    return AutoencoderKLWan().eval()


def prompt_embeds(facts: ModelFacts) -> list[Tensor]:
    """Per branch, [1, text tokens, text_dim]."""
    shape = (2, 1, facts.text_tokens, facts.transformer.text_dim)
    return list(torch.randn(shape, generator=torch.Generator().manual_seed(SEED)))


def denoiser(context: RankContext, plan: Plan, whole: bool = False) -> Contender:
    """The worker's own loop, with its watch over memory; `whole`: until the first rank has all the latents.

    Every run has a model of its own, which remembers no other run and which strategies may cut.
    """
    job = tiny_job(plan)
    rank = set_up(context, job)
    rank.memory.close()
    index = plan.layout.sequence_index(context.rank) if plan.world_size > 1 else 0

    def contender() -> Run:
        expert = transformer(plan.facts.transformer)
        model = Wan(plan, [expert], scheduler(), job.kernel, Shard(plan.tokens, index))
        model.set_inputs(Inputs(prompt_embeds(plan.facts)))
        apply_strategies(rank, model)

        def run() -> Tensor:
            rank.memory = PeakMemory(rank.device)
            x = denoise(rank, model)
            rank.memory.close()
            if not whole:
                return x
            latents = gather_latents(rank, model, x)
            return torch.empty(0) if latents is None else latents

        return run

    return contender


def stock(plan: Plan, expert: Any = None) -> Contender:
    """diffusers' pipeline on the same request."""
    from diffusers import WanPipeline

    expert = expert or transformer(plan.facts.transformer)
    pipe = WanPipeline(None, None, vae=vae(), scheduler=scheduler(), transformer=expert)
    pipe.set_progress_bar_config(disable=True)
    with_prompt, without = prompt_embeds(plan.facts)
    clip = plan.clip

    def run() -> Tensor:
        latents: Tensor = pipe(
            prompt_embeds=with_prompt,
            negative_prompt_embeds=without,
            width=clip.width,
            height=clip.height,
            num_frames=clip.frames,
            num_inference_steps=clip.steps,
            guidance_scale=clip.guidance,
            latents=noise(plan),
            output_type="latent",
        ).frames
        return latents

    return lambda: run


def decoder(context: RankContext, plan: Plan) -> Contender:
    """Latents to frames. When split, all ranks but the first return an empty tensor."""
    job = tiny_job(plan)
    rank = set_up(context, job)
    rank.memory.close()
    model = Wan(plan, [transformer(plan.facts.transformer)], None, job.kernel, Shard(plan.tokens, 0))
    model.vae = vae()
    apply_strategies(rank, model)
    given = noise(plan) if plan.world_size == 1 or context.rank == 0 else None

    def run() -> Tensor:
        return torch.cat([frames for frames in model.slots.decode(given) if frames is not None] or [torch.empty(0)])

    return lambda: run
