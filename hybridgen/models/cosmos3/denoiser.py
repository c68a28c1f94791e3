"""Cosmos 3 taken apart: a mixture of transformers of which text and video have weights of their own.

The text depends neither on the video nor on the time, so it runs through the blocks once per request (text.py). What is
left, and split over ranks, is the video stream.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from diffusers.pipelines.cosmos import pipeline_cosmos3_omni as omni
from torch import Tensor

from hybridgen.distributed.sequence import Shard, unpatchify
from hybridgen.models.cosmos3.text import EMBEDDING, Rope, TextStream, give_up, heads, rotate
from hybridgen.models.denoiser import Denoiser
from hybridgen.models.inputs import Encoder, Inputs
from hybridgen.models.slots import Cuts, Pass, Step
from hybridgen.plan.kernels import Kernel
from hybridgen.plan.plan import Plan

UNUSED = (
    "lm_head",
    "norm",
    *(f"{kind}_{part}" for kind in ("audio", "action") for part in ("proj_in", "proj_out", "modality_embed")),
)
"""Parts of a transformer that video does not need: those that write text, sound and actions."""


class Cosmos3(Denoiser):
    """Cosmos 3: text, or text and a first image, to video; text to an image."""

    stack = "layers"

    def __init__(self, plan: Plan, experts: list[Any], scheduler: Any, kernel: Kernel, shard: Shard) -> None:
        super().__init__(plan, experts, scheduler, kernel, shard)
        self.text = TextStream(self)
        self._rope: dict[int, Rope] = {}
        self._mask: Tensor | None = None
        """Mask: 1 where an element of the state is denoised, 0 in given frames and padding; None when all are."""
        self.cuts = cuts(plan.facts.transformer.gated)

    @classmethod
    def encoder(cls, plan: Plan, folder: Path, device: torch.device) -> Cosmos3Encoder:
        return Cosmos3Encoder(plan, folder, device)

    @classmethod
    def prune(cls, expert: Any) -> None:
        give_up(expert, UNUSED)

    def keep_layers(self, layers: range) -> None:
        super().keep_layers(layers)
        if layers.start:
            give_up(self.expert, (EMBEDDING,))

    @property
    def expert(self) -> Any:
        return self.experts[0]

    @property
    def given_tokens(self) -> int:
        """Number of tokens of the given frame; they come first and have no noise."""
        _, _, rows, columns = self.plan.latent_shape
        _, p_h, p_w = self.state.patch
        return -(-rows // p_h) * -(-columns // p_w) if self.plan.clip.image else 0

    # The text, once

    def needed_for_inputs(self, key: str) -> bool:
        """Whether a parameter belongs to the text's stream, which is read first, so that the weights of both need not
        fit together."""
        return self.text.needs(key)

    def set_inputs(self, inputs: Inputs) -> None:
        super().set_inputs(inputs)
        self._mask = self.denoised()
        self.text.read(inputs.text)

    def rope(self, positions: Tensor) -> Rope:
        """Rotary tables of positions [3, n] along time, height and width."""
        cos, sin = self.expert.rotary_emb(positions.unsqueeze(1).to(self.device), self.device, self.dtype)
        return cos.unsqueeze(2), sin.unsqueeze(2)

    # The video, in every step

    def condition(self, step: Step, now: Pass) -> Rope:
        """Condition of one branch: positions follow those of its text, and time is in the tokens already."""
        if now.branch not in self._rope:
            text = self.inputs.text[now.branch].shape[1]
            cos, sin = self.rope(video_positions(text, self.plan, self.expert.config))
            self._rope[now.branch] = self.state.rows(cos), self.state.rows(sin)
        cos, sin = (self.state.here(table, now.patch) for table in self._rope[now.branch])
        return cos, sin

    def embed(self, x: Tensor, step: Step, now: Pass) -> Tensor:
        expert, whole = self.expert, self.state.whole
        hidden: Tensor = expert.proj_in(self.state.tokens(x.to(self.dtype)))
        # All noisy tokens have the same time. The stock pipeline embeds it for each, which rounds otherwise.
        rows = hidden.shape[1] - self.given_tokens if whole else 1
        time: Tensor = expert.time_proj(step.timestep.expand(rows) * expert.config.timestep_scale)
        time = expert.time_embedder(time.to(next(expert.time_embedder.parameters()).dtype)).to(self.dtype)
        if whole:
            given, noisy = torch.tensor_split(hidden, [self.given_tokens], 1)
            return torch.cat([given, noisy + time], 1)
        if self._mask is not None:
            time = time * self.state.here(self._mask, now.patch)[..., :1].to(
                self.dtype
            )  # a token's first cell is no padding
        return hidden + time

    def run_block(self, block: Any, hidden: Tensor, condition: Rope, now: Pass) -> Tensor:
        hidden = hidden + self.attend_all(block.self_attn, block.input_layernorm_moe_gen(hidden), condition, now)
        return hidden + block.mlp_moe_gen(block.post_attention_layernorm_moe_gen(hidden))  # type: ignore[no-any-return]

    def attend_all(self, attn: Any, normed: Tensor, rope: Rope, now: Pass) -> Tensor:
        """Attention of a block, [1, n, D] -> [1, n, D]; Q, K and V are freed before the feed-forward layer runs."""
        q, k, v = (heads(project(normed), attn) for project in (attn.add_q_proj, attn.add_k_proj, attn.add_v_proj))
        q = rotate(attn.norm_added_q(q), *rope)
        k = rotate(attn.norm_added_k(k), *rope)
        out = self.slots.attention(q, k, v, self.text.kept[now.layer, now.branch], now)
        return attn.to_add_out(out.flatten(2))  # type: ignore[no-any-return]

    def head(self, hidden: Tensor, step: Step, condition: Rope) -> Tensor:
        hidden = self.expert.norm_moe_gen(hidden)
        if not self.state.whole:
            return self.expert.proj_out(hidden)  # type: ignore[no-any-return]
        channels, frames, rows, columns = self.plan.latent_shape
        given = int(self.plan.clip.image)
        made = self.expert.proj_out(hidden[:, self.given_tokens :])
        made = unpatchify(made, (channels, frames - given, rows, columns), self.state.patch)
        return F.pad(made, (0, 0, 0, 0, given, 0))

    def combine(self, predictions: list[Tensor], x: Tensor, step: Step, now: Pass) -> Tensor:
        """Guidance in fp32; zeros where the state is not denoised."""
        velocity = super().combine([prediction.float() for prediction in predictions], x, step, now)
        return velocity if self._mask is None else velocity * self.state.here(self._mask, now.patch)

    # Start and end

    def set_timesteps(self) -> None:
        steps, sigmas = self.plan.clip.steps, None
        if self.plan.facts.native_flow:
            highest = 1.0 - 1.0 / self.scheduler.config.num_train_timesteps
            sigmas = np.linspace(highest, 0.0, steps + 1)[:-1]
        self.scheduler.set_timesteps(steps, device=self.device, sigmas=sigmas)

    def initial_latents(self, generator: torch.Generator) -> Tensor:
        latents = super().initial_latents(generator)
        if self.inputs.condition is not None:
            latents[:, :, :1] = self.inputs.condition
        return latents

    def denoised(self) -> Tensor | None:
        """Mask of this rank's denoised tokens, padded with zeros; with all tokens the prediction is 0 already."""
        _, _, rows, columns = self.plan.latent_shape
        _, p_h, p_w = self.state.patch
        if self.state.whole or (not self.plan.clip.image and rows % p_h == 0 and columns % p_w == 0):
            return None
        mask = torch.ones(1, *self.plan.latent_shape, device=self.device)
        mask[:, :, : int(self.plan.clip.image)] = 0
        return self.state.cut(mask)

    def frames_to_encode(self, pictures: list[Any]) -> Tensor:
        """The image alone: the stock pipeline encodes a clip of it and keeps the first latent frame."""
        clip = self.plan.clip
        pixels: Tensor = omni._preprocess_conditioning_image(pictures[0], clip.height, clip.width)
        return pixels.unsqueeze(2)


def cuts(gated: bool) -> Cuts:
    """The cuts of tensor parallelism, which treat both streams alike."""
    feed_forward = ("gate_proj", "up_proj") if gated else ("up_proj",)
    projections = (*(f"to_{x}" for x in "qkv"), *(f"add_{x}_proj" for x in "qkv"))
    return Cuts(
        columns=(
            *(f"self_attn.{name}" for name in projections),
            *(f"{mlp}.{name}" for mlp in ("mlp", "mlp_moe_gen") for name in feed_forward),
        ),
        rows=("self_attn.to_out", "self_attn.to_add_out", "mlp.down_proj", "mlp_moe_gen.down_proj"),
        heads=("self_attn.num_attention_heads", "self_attn.num_key_value_heads"),
    )


def video_positions(text: int, plan: Plan, config: Any) -> Tensor:
    """Positions [3, tokens] of the whole clip, after those of the text."""
    _, frames, rows, columns = plan.latent_shape
    _, p_h, p_w = plan.facts.transformer.patch
    return omni.get_3d_mrope_ids_vae_tokens(  # type: ignore[no-any-return]
        frames,
        math.ceil(rows / p_h),
        math.ceil(columns / p_w),
        temporal_offset=text + config.unified_3d_mrope_temporal_modality_margin,
        reset_spatial_indices=config.unified_3d_mrope_reset_spatial_ids,
        fps=plan.clip.fps if config.enable_fps_modulation else None,
        base_fps=float(config.base_fps),
        temporal_compression_factor=plan.facts.vae.stride_time,
    )[0]


class Cosmos3Encoder(Encoder):
    """The tokenizer, with the templates that the transformer was trained on; there is no text encoder."""

    cuts = False

    def __init__(self, plan: Plan, folder: Path, device: torch.device) -> None:
        from accelerate import init_empty_weights
        from diffusers import AutoencoderKLWan, Cosmos3OmniPipeline

        super().__init__(plan, device)
        with init_empty_weights():  # the pipeline reads its configuration
            vae = AutoencoderKLWan.from_config(AutoencoderKLWan.load_config(folder, subfolder="vae"))
        rest = dict.fromkeys(("transformer", "scheduler", "sound_tokenizer", "safety_checker"))
        self.pipe = Cosmos3OmniPipeline.from_pretrained(folder, vae=vae, enable_safety_checker=False, **rest)

    def encode(self, prompt: str, negative_prompt: str, pictures: Sequence[Any] = ()) -> Inputs:
        """Token ids [1, n], int64, of every branch; the lengths differ."""
        clip = self.plan.clip
        found = self.pipe.tokenize_prompt(
            prompt,
            negative_prompt,
            num_frames=clip.frames,
            height=clip.height,
            width=clip.width,
            fps=float(clip.fps),
        )
        return Inputs([torch.tensor([ids], device=self.device) for ids in found[: self.plan.branches]])
