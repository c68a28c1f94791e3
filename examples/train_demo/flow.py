"""Flow matching on cached latents: one transformer with the text encoder, then an expert per noise range."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLWan, WanTransformer3DModel
from torch import Tensor
from transformers import BatchEncoding, PreTrainedTokenizerFast, UMT5EncoderModel

from examples.train_demo.clips import CAPTIONS, Size, grid_clips, seeded
from examples.train_demo.codec import encode
from examples.train_demo.models import FLOW_SHIFT
from examples.train_demo.schedule import set_learning_rate

CAPTION_DROPOUT = 0.1
EMA = 0.995
FULL_PROMPT = 512  # tokens of a padded prompt in real use
SHORT_PROMPTS = (16, 16, 24, 32, 32, 64)  # tokens in 15 of 16 steps: cheaper
Span = tuple[float, float]


@dataclass
class Pool:
    """Encoded clips of one size and how often a batch is drawn from them."""

    latents: Tensor  # [n, 16, t, h, w], normalised
    caption: Tensor  # [n]
    weight: float


@torch.no_grad()
def encode_clips(vae: AutoencoderKLWan, per_caption: int, size: Size, seed: int) -> tuple[Tensor, Tensor]:
    """Latents [n, 16, t, h, w] of per_caption grid clips for every caption, and caption indices [n]."""
    rng = seeded(seed)
    caption = torch.arange(len(CAPTIONS)).repeat(per_caption)
    return torch.cat([encode(vae, grid_clips(c, size, rng)) for c in torch.split(caption, 8)]), caption


def noise_levels(n: int, span: Span | None) -> Tensor:
    """Noise levels [n] in 0..1: logit-normal and shifted, or uniform over the sampler's steps inside span."""
    if span is None:
        u = torch.sigmoid(torch.randn(n))
    else:
        low, high = (s / (FLOW_SHIFT - (FLOW_SHIFT - 1) * s) for s in span)
        u = low + (high - low) * torch.rand(n)
    return FLOW_SHIFT * u / (1 + (FLOW_SHIFT - 1) * u)


def embed_captions(text: UMT5EncoderModel, tokens: BatchEncoding, length: int) -> Tensor:
    """Embeddings [97, length, 64] of all captions and the empty one, zero-padded as the pipeline does."""
    hidden = text(tokens.input_ids, tokens.attention_mask).last_hidden_state
    hidden = hidden * tokens.attention_mask[..., None]
    return F.pad(hidden, (0, 0, 0, length - hidden.shape[1]))


def flow_loss(
    transformer: WanTransformer3DModel, pool: Pool, embeddings: Tensor, batch: int, span: Span | None
) -> Tensor:
    """Mean squared error of the predicted velocity, noise - data, at random noise levels."""
    pick = torch.randint(len(pool.latents), (batch,))
    x = pool.latents[pick]
    noise = torch.randn(x.shape)
    level = noise_levels(batch, span)
    mix = level.view(-1, 1, 1, 1, 1)
    dropped = torch.rand(batch) < CAPTION_DROPOUT
    caption = torch.where(dropped, len(CAPTIONS), pool.caption[pick])
    noisy = (1 - mix) * x + mix * noise
    velocity = transformer(noisy, level * 1000, embeddings[caption], return_dict=False)[0]
    return F.mse_loss(velocity, noise - x)


def train_flow(
    transformer: WanTransformer3DModel,
    text: UMT5EncoderModel,
    tokenizer: PreTrainedTokenizerFast,
    pools: Sequence[Pool],
    steps: int,
    lr: float,
    seed: int,
    span: Span | None = None,
    batch: int = 16,
    warm: int = 50,
) -> None:
    """Train in place; the models end with the moving average of their weights.

    span = (low, high) restricts the noise level and freezes the text encoder, which both experts share.
    """
    torch.manual_seed(seed)
    rng, began, losses = random.Random(seed), time.time(), []
    tokens = tokenizer([*CAPTIONS, ""], padding=True, return_tensors="pt")
    params = list(transformer.parameters()) + ([] if span else list(text.parameters()))
    optimiser = torch.optim.AdamW(params, lr, betas=(0.9, 0.98), weight_decay=0.0)
    average = [p.detach().clone() for p in params]
    for step in range(steps):
        set_learning_rate(optimiser, lr, step, steps, warm)
        pool = rng.choices(pools, [p.weight for p in pools])[0]
        length = FULL_PROMPT if step % 16 == 0 else rng.choice(SHORT_PROMPTS)
        with torch.set_grad_enabled(span is None):
            embeddings = embed_captions(text, tokens, length)
        loss = flow_loss(transformer, pool, embeddings, batch, span)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimiser.step()
        with torch.no_grad():
            decay = min(EMA, (step + 1) / (step + 21))
            torch._foreach_lerp_(average, [p.detach() for p in params], 1 - decay)
        losses.append(loss.item())
        if (step + 1) % 250 == 0:
            mean, seconds = sum(losses[-250:]) / 250, time.time() - began
            print(f"  flow {step + 1}/{steps} {seconds:.0f}s loss {mean:.4f}", flush=True)
    with torch.no_grad():
        for p, a in zip(params, average, strict=True):
            p.copy_(a)
