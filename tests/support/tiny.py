"""Tiny Wan models whose every part matters: unit-scale random weights, so that a fault moves the output far."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hybridgen.distributed.processes import RankContext
from hybridgen.distributed.sequence import Shard
from hybridgen.engine.denoise import denoise, gather_latents
from hybridgen.engine.job import Job
from hybridgen.engine.rank import set_up
from hybridgen.engine.worker import apply_strategies
from hybridgen.models.autoencoder import to_uint8
from hybridgen.models.inputs import Inputs
from hybridgen.models.tiny.weights import unit_scale
from hybridgen.models.wan import random as wan_random
from hybridgen.models.wan.denoiser import Wan
from hybridgen.models.wan.facts import WanTransformer
from hybridgen.models.wan.vae import WanAutoencoder
from hybridgen.plan.facts import ModelFacts, RequestDefaults, TransformerFacts
from hybridgen.plan.kernels import select
from hybridgen.plan.plan import Clip, Plan
from hybridgen.plan.traffic import SETUP, by_strategy
from hybridgen.strategies import registry
from hybridgen.strategies.registry import Degrees
from tests.support.live_bytes import LiveBytes
from tests.support.ranks import run_ranks, without_memory
from tests.support.tiny_vae import TINY, build_vae

TRANSFORMER = WanTransformer(layers=2, heads=8, head_dim=16, ffn=192, text_dim=24, freq_dim=32)
FACTS = ModelFacts(
    name="tiny",
    pipeline="WanPipeline",
    source="tiny",
    transformer=TRANSFORMER,
    vae=replace(TINY, params=668_043),
    experts=2,
    boundary=0.875,
    text_tokens=12,
    text_params=1000,
    defaults=RequestDefaults(width=64, height=64, frames=17),
)
GUIDANCE_2 = 3.0
CLIP = Clip(64, 64, 17, steps=3, guidance=4.0, guidance_2=GUIDANCE_2)  # latent 5 x 8 x 8, 80 tokens; both experts
SEED = 7


def transformer(seed: int, facts: TransformerFacts = TRANSFORMER) -> Any:
    return unit_scale(wan_random.transformer(facts), seed)


def scheduler() -> Any:
    from diffusers import UniPCMultistepScheduler

    return UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0)


@lru_cache
def experts(dtype: str = "float32", layers: int = TRANSFORMER.layers) -> list[Any]:
    """Two experts; in half precision with the modules that from_pretrained keeps in fp32 kept so."""
    facts = replace(TRANSFORMER, layers=layers)
    return [wan_random.cast(transformer(seed, facts), getattr(torch, dtype)) for seed in (1, 2)]


@lru_cache
def prompt_embeds() -> Tensor:
    """[branches, 1, text tokens, text_dim]"""
    shape = (2, 1, FACTS.text_tokens, TRANSFORMER.text_dim)
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def noise(plan: Plan) -> Tensor:
    """What every run of a tiny job starts from, [1, C, T, H, W]."""
    return torch.randn((1, *plan.latent_shape), generator=torch.Generator().manual_seed(SEED))


@lru_cache
def stock_latents(clip: Clip = CLIP, dtype: str = "float32", layers: int = TRANSFORMER.layers) -> Tensor:
    """What diffusers' WanPipeline makes of the same request in one process, [1, 16, T, H, W]."""
    from diffusers import AutoencoderKLWan, WanPipeline

    vae = AutoencoderKLWan(base_dim=8, num_res_blocks=1)
    high, low = experts(dtype, layers)
    pipe = WanPipeline(
        tokenizer=None,
        text_encoder=None,
        vae=vae,
        scheduler=scheduler(),
        transformer=high,
        transformer_2=low,
        boundary_ratio=FACTS.boundary,
    )
    pipe.set_progress_bar_config(disable=True)
    with_prompt, without = prompt_embeds().to(getattr(torch, dtype))
    found: Tensor = pipe(
        prompt_embeds=with_prompt,
        negative_prompt_embeds=without,
        width=clip.width,
        height=clip.height,
        num_frames=clip.frames,
        num_inference_steps=clip.steps,
        guidance_scale=clip.guidance,
        guidance_scale_2=clip.guidance_2,
        generator=torch.Generator().manual_seed(SEED),
        output_type="latent",
    ).frames
    return found


@dataclass(frozen=True)
class Outcome:
    """What a run on ranks gave."""

    latents: Tensor
    """What rank 0 gathered, [1, C, T, H, W]."""
    frames: Tensor | None
    """What the ranks of a parallel VAE decoded, uint8 [T, H, W, 3]; None when one rank would have."""
    sent: list[dict[str, int]]
    """Bytes that every rank sent, by strategy."""
    declared: list[dict[str, int]]
    """Bytes that the strategies' rules say it sends."""
    held: list[int] = field(default_factory=list)
    """Bytes of the tensors that every rank held at its fullest while denoising, without weights; [] if not counted."""

    def error(self, reference: Tensor) -> float:
        """||a - b|| / ||b||; not-a-number counts as infinite."""
        found = ((self.latents - reference).norm() / reference.norm()).item()
        return found if found == found else float("inf")


def tiny_plan(degrees: Degrees, clip: Clip = CLIP, dtype: str = "float32", **changes: Any) -> Plan:
    return changed(Plan(FACTS, clip, degrees, dtype=dtype).with_options(warmup=clip.steps), **changes)


def changed(plan: Plan, **changes: Any) -> Plan:
    """The plan with other fields, or options of strategies."""
    options = {name: changes.pop(name) for name in [*changes] if name in plan.degrees.options}
    return replace(plan.with_options(**options), **changes)


def tiny_job(plan: Plan, attention: str = "auto") -> Job:
    kernel = select(attention, "cpu", plan.dtype, plan.facts.transformer.head_dim, plan.degrees.cp > 1)
    nowhere = Path("unused")
    return Job(plan, kernel, "cpu", "", "", SEED, nowhere, quiet=True)


def run_plan(plan: Plan, attention: str = "auto", count: bool = False) -> Outcome:
    """Denoise, and decode where that is parallel, on forked CPU ranks through the worker's own functions.

    `count`: count tensors, which takes time.
    """
    job = tiny_job(plan, attention)
    models = experts(plan.dtype, plan.facts.transformer.layers)

    def run_here(context: RankContext) -> tuple[Tensor | None, Tensor | None, dict[str, int], int]:
        without_memory()
        rank = set_up(context, job)
        shard = Shard(plan.tokens, plan.layout.sequence_index(context.rank))
        model = Wan(plan, models, scheduler(), job.kernel, shard)
        model.set_inputs(Inputs(list(prompt_embeds().to(model.dtype))))
        apply_strategies(rank, model)
        weights = [p for expert in models for p in (*expert.parameters(), *expert.buffers())]
        with LiveBytes(model.inputs.text, weights) if count else nullcontext() as tensors:
            x = denoise(rank, model)
        latents, frames = gather_latents(rank, model, x), None
        if plan.degrees.vae > 1 and rank.mesh.is_on("vae"):
            model.vae = WanAutoencoder(build_vae(plan.facts.vae))
            frames = [chunk for chunk in model.slots.decode(latents) if chunk is not None]
        held = tensors.peak if tensors else 0
        return latents, torch.cat(frames) if frames else None, dict(rank.mesh.traffic.sent), held

    results = run_ranks(plan.world_size, run_here, group=False)
    sent = [{name: n for name, n in sent.items() if n} for _, _, sent, _ in results]
    declared = [
        by_strategy(m for m in registry.traffic(plan, rank) if m.strategy != SETUP) for rank in range(plan.world_size)
    ]
    latents, frames, *_ = results[0]
    return Outcome(latents, frames, sent, declared, [held for *_, held in results])


def stock_frames(latents: Tensor) -> Tensor:
    """What one process decodes them to, uint8 [T, H, W, 3]."""
    vae = build_vae(FACTS.vae)
    with torch.no_grad():
        return to_uint8(vae.decode(WanAutoencoder(vae).unnormalise(latents)).sample)
