"""Flow matching on cached latents: first one transformer with the text encoder, then an expert per noise range."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLWan, WanTransformer3DModel
from torch import Tensor
from transformers import PreTrainedTokenizerFast, UMT5EncoderModel

from examples.train_demo.clips import CAPTIONS, Size, grid_clips, seeded
from examples.train_demo.codec import cosine, encode
from examples.train_demo.models import FLOW_SHIFT

CAPTION_DROPOUT = 0.1
EMA = 0.995
PROMPT_LENGTHS = (16, 16, 24, 32, 32, 64)  # tokens, padded; every 16th step has the 512 of the real pipeline


@dataclass
class Pool:
    """Encoded clips of one size and how often a batch is drawn from them."""

    latents: Tensor  # [n, 16, t, h, w], normalised
    caption: Tensor  # [n]
    weight: float


@torch.no_grad()
def encode_clips(vae: AutoencoderKLWan, per_caption: int, size: Size, seed: int, batch: int = 8) -> tuple[Tensor, Tensor]:
    """Latents [n, 16, t, h, w] of per_caption grid clips for every caption, and caption indices [n]."""
    rng = seeded(seed)
    caption = torch.arange(len(CAPTIONS)).repeat(per_caption)
    return torch.cat([encode(vae, grid_clips(c, size, rng)) for c in caption.split(batch)]), caption


def noise_levels(n: int, span: tuple[float, float] | None) -> Tensor:
    """Noise levels [n] in 0..1: logit-normal then shifted, or uniform over the sampler's steps inside span."""
    if span is None:
        u = torch.sigmoid(torch.randn(n))
    else:
        low, high = (s / (FLOW_SHIFT - (FLOW_SHIFT - 1) * s) for s in span)
        u = low + (high - low) * torch.rand(n)
    return FLOW_SHIFT * u / (1 + (FLOW_SHIFT - 1) * u)


def train_flow(
    transformer: WanTransformer3DModel,
    text: UMT5EncoderModel,
    tokenizer: PreTrainedTokenizerFast,
    pools: Sequence[Pool],
    steps: int,
    lr: float,
    seed: int,
    span: tuple[float, float] | None = None,
    batch: int = 16,
    warm: int = 50,
) -> None:
    """Train in place to predict noise - data; the averaged weights are left in the models.

    span = (low, high) restricts the noise level and freezes the text encoder, which both experts share.
    """
    torch.manual_seed(seed)
    rng, began, losses = random.Random(seed), time.time(), []
    tokens = tokenizer([*CAPTIONS, ""], padding=True, return_tensors="pt")
    params = list(transformer.parameters()) + ([] if span else list(text.parameters()))
    optimiser = torch.optim.AdamW(params, lr, betas=(0.9, 0.98), weight_decay=0.0)
    average = [p.detach().clone() for p in params]
    for step in range(steps):
        cosine(optimiser, lr, step, steps, warm)
        pool = rng.choices(pools, [p.weight for p in pools])[0]
        pick = torch.randint(len(pool.latents), (batch,))
        x = pool.latents[pick]
        noise = torch.randn(x.shape)
        level = noise_levels(batch, span)
        mix = level.view(-1, 1, 1, 1, 1)
        caption = torch.where(torch.rand(batch) < CAPTION_DROPOUT, len(CAPTIONS), pool.caption[pick])
        with torch.set_grad_enabled(span is None):
            hidden = text(tokens.input_ids, tokens.attention_mask).last_hidden_state
            hidden = hidden * tokens.attention_mask[..., None]
        # the pipeline pads prompts with zero vectors up to max_sequence_length: train over many lengths
        length = 512 if step % 16 == 0 else rng.choice(PROMPT_LENGTHS)
        prompt = F.pad(hidden, (0, 0, 0, length - hidden.shape[1]))[caption]
        velocity = transformer((1 - mix) * x + mix * noise, level * 1000, prompt, return_dict=False)[0]
        loss = F.mse_loss(velocity, noise - x)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimiser.step()
        losses.append(loss.item())
        with torch.no_grad():
            torch._foreach_lerp_(average, [p.detach() for p in params], 1 - min(EMA, (step + 1) / (step + 21)))
        if (step + 1) % 250 == 0:
            mean = sum(losses[-250:]) / 250
            print(f"  flow {step + 1}/{steps} {time.time() - began:.0f}s loss {mean:.4f}", flush=True)
    with torch.no_grad():
        for p, a in zip(params, average, strict=True):
            p.copy_(a)
