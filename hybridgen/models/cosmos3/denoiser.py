"""Cosmos 3 taken apart: a mixture of transformers of which text and video have weights of their own.

The text reads itself only, neither the video nor the time, so it runs through the blocks once a request; its K and V
are kept, and the weights that made them are given up before the others are read. What is left, and split over ranks,
is the video's stream.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from diffusers.pipelines.cosmos import pipeline_cosmos3_omni as omni
from torch import Tensor, nn

from hybridgen.distributed.sequence import Shard, patchify, unpatchify
from hybridgen.models.denoiser import Denoiser
from hybridgen.models.inputs import Encoder, Inputs
from hybridgen.models.slots import Cuts, KeyValue, Step
from hybridgen.plan.kernels import Kernel
from hybridgen.plan.plan import Plan

UNUSED = (
    "lm_head",
    "norm",
    *(f"{kind}_{part}" for kind in ("audio", "action") for part in ("proj_in", "proj_out", "modality_embed")),
)
"""Parts of a transformer that frames do not need: what would write text, sound and actions."""

Rope = tuple[Tensor, Tensor]
"""cos and sin, [1, n, 1, head_dim] each, in the transformer's dtype."""

TEXT_EMBEDDING = "embed_tokens"
TEXT_PARTS = (
    *(f"self_attn.{part}" for part in ("to_q", "to_k", "to_v", "to_out", "norm_q", "norm_k", "k_norm_und_for_gen")),
    "mlp",
    "input_layernorm",
    "post_attention_layernorm",
)
"""Modules of a block that the text alone runs through; not every checkpoint has all."""


def rotate(x_BSHD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding on the two halves of the channels."""
    first, second = x_BSHD.chunk(2, -1)
    return x_BSHD * cos + torch.cat((-second, first), -1) * sin


class Cosmos3(Denoiser):
    """Cosmos 3: text, or text and a first picture, to video; text to an image."""

    stack = "layers"

    def __init__(self, plan: Plan, experts: list[Any], scheduler: Any, kernel: Kernel, shard: Shard) -> None:
        super().__init__(plan, experts, scheduler, kernel, shard)
        self.text: dict[tuple[int, int], KeyValue] = {}
        """K and V of the text, rotated, by layer and branch; of this rank's heads."""
        self.read = False
        """Whether the text was read, and its weights are gone."""
        self._rope: dict[int, Rope] = {}
        self._mask: Tensor | None = None
        """1 where a number of the state is denoised, 0 in given frames and padding; None when all are."""
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
            give_up(self.expert, (TEXT_EMBEDDING,))

    @property
    def expert(self) -> Any:
        return self.experts[0]

    @property
    def given_tokens(self) -> int:
        """Tokens of the frame that is given; they come first and have no noise."""
        _, _, rows, columns = self.plan.latent_shape
        _, p_h, p_w = self.patch
        return -(-rows // p_h) * -(-columns // p_w) if self.plan.clip.image else 0

    # The text, once

    def needed_for_inputs(self, key: str) -> bool:
        """So that the two streams' weights are never here together."""
        _, _, of_block = key.removeprefix(f"{self.stack}.").partition(".")
        return key.startswith(TEXT_EMBEDDING) or any(of_block.startswith(f"{part}.") for part in TEXT_PARTS)

    def set_inputs(self, inputs: Inputs) -> None:
        assert not self.read, "the weights that read text are gone: a new request needs a new model"
        super().set_inputs(inputs)
        self._mask = self.denoised()
        for self.branch in self.branches:
            ids = inputs.text[self.branch]
            self.relay(ids.shape[1], partial(self.embed_text, ids), self.read_text)
        self.read = True
        give_up(self.expert, (TEXT_EMBEDDING,))
        for block in self.blocks():
            give_up(block, TEXT_PARTS)

    def embed_text(self, ids: Tensor) -> Tensor:
        """Token ids [1, n] -> hidden state [1, n, D]."""
        return self.expert.embed_tokens(ids)  # type: ignore[no-any-return]

    def read_text(self, hidden: Tensor) -> Tensor:
        """Hidden state of the text [1, n, D] through this rank's blocks, of which K and V are kept."""
        rope = self.rope(text_positions(hidden.shape[1], self.expert.config))
        blocks = getattr(self.expert, self.stack)
        for self.layer in self.layers:
            hidden = self.read_block(blocks[self.layer], hidden, rope)
        return hidden

    def read_block(self, block: Any, hidden: Tensor, rope: Rope) -> Tensor:
        """The text through one block; nothing needs what the last one makes of it."""
        attn, normed = block.self_attn, block.input_layernorm(hidden)
        k, v = attn.norm_k(heads(attn.to_k(normed), attn)), heads(attn.to_v(normed), attn)
        shown = k if attn.k_norm_und_for_gen is None else attn.k_norm_und_for_gen(k)
        self.text[self.layer, self.branch] = rotate(shown, *rope), v
        if self.layer == self.plan.facts.transformer.layers - 1:
            return hidden
        q, k = rotate(attn.norm_q(heads(attn.to_q(normed), attn)), *rope), rotate(k, *rope)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)
        hidden = hidden + attn.to_out(out.flatten(2))
        return hidden + block.mlp(block.post_attention_layernorm(hidden))  # type: ignore[no-any-return]

    def rope(self, positions: Tensor) -> Rope:
        """Tables of positions [3, n]: along time, height and width."""
        cos, sin = self.expert.rotary_emb(positions.unsqueeze(1).to(self.device), self.device, self.dtype)
        return cos.unsqueeze(2), sin.unsqueeze(2)

    # The video, in every step

    def condition(self, step: Step, branch: int) -> Rope:
        """Positions follow the text's, so every branch has its own; time is in the tokens already."""
        if branch not in self._rope:
            text = self.inputs.text[branch].shape[1]
            cos, sin = self.rope(video_positions(text, self.plan, self.expert.config))
            self._rope[branch] = (cos, sin) if self.shard.whole else (self.shard.take(cos), self.shard.take(sin))
        cos, sin = self._rope[branch]
        return self.here(cos), self.here(sin)

    def embed(self, x: Tensor, step: Step, branch: int) -> Tensor:
        expert, whole = self.expert, self.shard.whole
        x = x.to(self.dtype)
        hidden: Tensor = expert.proj_in(patchify(x, self.patch) if whole else x)
        # All noisy tokens have the same time. The stock pipeline embeds it for each, which rounds otherwise.
        rows = hidden.shape[1] - self.given_tokens if whole else 1
        time: Tensor = expert.time_proj(step.timestep.expand(rows) * expert.config.timestep_scale)
        time = expert.time_embedder(time.to(next(expert.time_embedder.parameters()).dtype)).to(self.dtype)
        if whole:
            given, noisy = torch.tensor_split(hidden, [self.given_tokens], 1)
            return torch.cat([given, noisy + time], 1)
        if self._mask is not None:
            time = time * self.here(self._mask)[..., :1].to(self.dtype)  # a token's first cell is no padding
        return hidden + time

    def run_block(self, block: Any, hidden: Tensor, condition: Rope) -> Tensor:
        hidden = hidden + self.attend_all(block.self_attn, block.input_layernorm_moe_gen(hidden), condition)
        return hidden + block.mlp_moe_gen(block.post_attention_layernorm_moe_gen(hidden))  # type: ignore[no-any-return]

    def attend_all(self, attn: Any, normed: Tensor, rope: Rope) -> Tensor:
        """What a block's attention makes of [1, n, D]; Q, K and V are gone before the feed-forward layer runs."""
        q, k, v = (heads(project(normed), attn) for project in (attn.add_q_proj, attn.add_k_proj, attn.add_v_proj))
        q = rotate(attn.norm_added_q(q), *rope)
        k = rotate(attn.norm_added_k(k), *rope)
        out = self.attention(q, k, v, self.text[self.layer, self.branch])
        return attn.to_add_out(out.flatten(2))  # type: ignore[no-any-return]

    def head(self, hidden: Tensor, step: Step, condition: Rope) -> Tensor:
        hidden = self.expert.norm_moe_gen(hidden)
        if not self.shard.whole:
            return self.expert.proj_out(hidden)  # type: ignore[no-any-return]
        channels, frames, rows, columns = self.plan.latent_shape
        given = int(self.plan.clip.image)
        made = self.expert.proj_out(hidden[:, self.given_tokens :])
        made = unpatchify(made, (channels, frames - given, rows, columns), self.patch)
        return F.pad(made, (0, 0, 0, 0, given, 0))

    def combine(self, predictions: list[Tensor], x: Tensor, step: Step) -> Tensor:
        """In fp32, and nothing where the state is not denoised."""
        velocity = super().combine([prediction.float() for prediction in predictions], x, step)
        return velocity if self._mask is None else velocity * self.here(self._mask)

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
        """The mask of this rank's tokens, padded with zeros; a rank with the whole sequence predicts zeros itself."""
        _, _, rows, columns = self.plan.latent_shape
        _, p_h, p_w = self.patch
        if self.shard.whole or not self.plan.clip.image and rows % p_h == 0 and columns % p_w == 0:
            return None
        mask = torch.ones(1, *self.plan.latent_shape, device=self.device)
        mask[:, :, : int(self.plan.clip.image)] = 0
        return self.to_state(mask)

    def frames_to_encode(self, pictures: list[Any]) -> Tensor:
        """The stock pipeline encodes a clip of the picture alone and keeps the first latent frame, which is it."""
        clip = self.plan.clip
        pixels: Tensor = omni._preprocess_conditioning_image(pictures[0], clip.height, clip.width)
        return pixels.unsqueeze(2)


def give_up(owner: nn.Module, names: Sequence[str]) -> None:
    """Take modules and parameters away, and their memory with them, where they are."""
    for name in names:
        parent, _, part = name.rpartition(".")
        if hasattr(holder := owner.get_submodule(parent), part):
            delattr(holder, part)


def heads(x: Tensor, attn: Any) -> Tensor:
    """[1, n, heads * head_dim] -> [1, n, heads, head_dim]."""
    return x.unflatten(2, (-1, attn.head_dim))  # type: ignore[no-untyped-call,no-any-return]


def cuts(gated: bool) -> Cuts:
    """What tensor parallelism cuts: both streams alike."""
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


def text_positions(tokens: int, config: Any) -> Tensor:
    """[3, tokens]: one after the other, on all three axes."""
    return omni.get_3d_mrope_ids_text_tokens(tokens, 0, config.enable_fps_modulation)[0]  # type: ignore[no-any-return]


def video_positions(text: int, plan: Plan, config: Any) -> Tensor:
    """[3, tokens] of the whole clip, after so many tokens of text."""
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

    def __init__(self, plan: Plan, folder: Path, device: torch.device) -> None:
        from accelerate import init_empty_weights
        from diffusers import AutoencoderKLWan, Cosmos3OmniPipeline

        super().__init__(plan, device)
        with init_empty_weights():  # the pipeline reads its configuration
            vae = AutoencoderKLWan.from_config(AutoencoderKLWan.load_config(folder, subfolder="vae"))
        rest = dict.fromkeys(("transformer", "scheduler", "sound_tokenizer", "safety_checker"))
        self.pipe = Cosmos3OmniPipeline.from_pretrained(folder, vae=vae, enable_safety_checker=False, **rest)

    def encode(self, prompt: str, negative_prompt: str, pictures: Sequence[Any] = ()) -> Inputs:
        """Token ids [1, n], int64, of every branch; their lengths differ."""
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
