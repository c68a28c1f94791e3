"""Wan from images: the pieces of diffusers' WanImageToVideoPipeline that a rank runs.

The autoencoder encodes the given images as a condition, which is cut with the sequence once. Wan 2.1 and Wan 2.2's A14B
read it as further channels next to the latents; in Wan 2.2's 5B it replaces the first frame's latents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hybridgen.distributed.sequence import Shard
from hybridgen.models.attention import TextAttention
from hybridgen.models.inputs import Inputs
from hybridgen.models.slots import KeyValue, Pass, Step
from hybridgen.models.wan.denoiser import Wan, WanEncoder, WanTextAttention
from hybridgen.plan.kernels import Kernel
from hybridgen.plan.plan import Plan


class ImageAttention(WanTextAttention):
    """Attention processor for cross-attention to the text and, separately, to the embedded images."""

    def __init__(self, model: WanImage, expert: int) -> None:
        super().__init__(model)
        self.pictures: Callable[[], Tensor] = partial(model.pictures, expert)

    def attend(self, attn: Any, q: Tensor, text: KeyValue) -> Tensor:
        pictures = self.key_value(self.pictures(), attn.heads, attn.add_k_proj, attn.norm_added_k, attn.add_v_proj)
        return super().attend(attn, q, text) + F.scaled_dot_product_attention(q, *pictures)


class WanPictures(Wan):
    """Base of the models that start from images: the frames that the autoencoder encodes."""

    def frames_to_encode(self, pictures: list[Any]) -> Tensor:
        """Frames to encode: the first image, grey (zeros) where nothing is known, and the last image if it is given."""
        from diffusers.video_processor import VideoProcessor

        clip = self.plan.clip
        processor = VideoProcessor(vae_scale_factor=self.plan.facts.vae.stride_space)
        frames = [processor.preprocess(picture, clip.height, clip.width).float() for picture in pictures]
        first, *last = (frame.unsqueeze(2) for frame in frames)
        unknown = first.new_zeros(1, 3, clip.encoded_frames - len(pictures), clip.height, clip.width)
        return torch.cat([first, unknown, *last], 2)


class WanImage(WanPictures):
    """Wan image-to-video: condition and mask are channels next to the latents; Wan 2.1 also reads CLIP's embedding."""

    def __init__(self, plan: Plan, experts: list[Any], scheduler: Any, kernel: Kernel, shard: Shard) -> None:
        self._pictures: dict[int, Tensor] = {}
        self._given: Tensor
        if plan.facts.transformer.image_dim:
            columns = (*self.cuts.columns, "attn2.add_k_proj", "attn2.add_v_proj")
            self.cuts = replace(self.cuts, columns=columns, norms=(*self.cuts.norms, "attn2.norm_added_k"))
        super().__init__(plan, experts, scheduler, kernel, shard)

    @classmethod
    def encoder(cls, plan: Plan, folder: Path, device: torch.device) -> WanEncoder:
        return WanImageEncoder(plan, folder, device)

    def cross_attention(self, expert: int) -> TextAttention:
        return ImageAttention(self, expert) if self.plan.facts.transformer.image_dim else WanTextAttention(self)

    def pictures(self, expert: int) -> Tensor:
        """Embedded images as an expert's blocks read them, [1, tokens, D]; equal for every branch."""
        if expert not in self._pictures:
            self._pictures[expert] = self.experts[expert].condition_embedder.image_embedder(self.inputs.image)
        return self._pictures[expert]

    def set_inputs(self, inputs: Inputs) -> None:
        super().set_inputs(inputs)
        self._pictures.clear()
        assert inputs.condition is not None
        given = torch.cat([self.mask().to(inputs.condition), inputs.condition], 1)
        self._given = self.state.cut(given).to(self.dtype)

    def mask(self) -> Tensor:
        """Mask, 1 for given frames and 0 for others: [1, stride, T, h, w], with a channel for each frame of video in a
        latent frame. The first latent frame stands for one frame, in all channels.
        """
        mask = torch.zeros(1, self.plan.facts.vae.stride_time, *self.plan.latent_shape[1:])
        mask[:, :, 0] = 1
        if self.plan.clip.last_image:
            mask[:, -1, -1] = 1
        return mask

    def embed(self, x: Tensor, step: Step, now: Pass) -> Tensor:
        """Embed the tokens that run now; channels of the condition follow those of the latents."""
        given = self.state.here(self._given, now.patch)
        return super().embed(self.state.beside(x.to(self.dtype), given), step, now)


class WanTokenTime(WanPictures):
    """Wan 2.2's 5B, from text or from an image: every token has its own timestep, which is 0 in a given frame."""

    def __init__(self, plan: Plan, experts: list[Any], scheduler: Any, kernel: Kernel, shard: Shard) -> None:
        super().__init__(plan, experts, scheduler, kernel, shard)
        self._given: Tensor | None = None
        """The condition in the form of x."""
        self._clean = torch.empty(0)
        """A mask of the given frame, in the form of x with one channel: true in the first frame."""

    def set_inputs(self, inputs: Inputs) -> None:
        super().set_inputs(inputs)
        condition, (_, *cells) = inputs.condition, self.plan.latent_shape
        clean = torch.zeros(1, 1, *cells, dtype=torch.bool, device=self.device)
        clean[:, :, 0] = condition is not None
        self._clean = self.state.cut_mask(clean)
        self._given = None
        if condition is not None:
            given = condition.new_zeros(1, *self.plan.latent_shape)
            given[:, :, :1] = condition
            self._given = self.state.cut(given)

    def embed(self, x: Tensor, step: Step, now: Pass) -> Tensor:
        if self._given is not None:
            x = torch.where(self.state.here(self._clean, now.patch), self.state.here(self._given, now.patch), x)
        return super().embed(x, step, now)

    def time(self, step: Step, now: Pass) -> tuple[Tensor, Tensor]:
        """Times of all tokens. On a rank with the whole sequence each is embedded, as the stock pipeline does it; on
        others the two that differ are embedded once."""
        if self.state.whole:
            _, p_h, p_w = self.state.patch
            tokens = self._clean[0, 0, :, ::p_h, ::p_w].flatten()
            time, modulation = self.embed_time(~tokens * step.timestep.float(), step)
        elif self._given is None:
            return super().time(step, now)
        else:
            tokens = self.state.here(self._clean, now.patch).flatten().long()
            timesteps = torch.stack([step.timestep, torch.zeros_like(step.timestep)])
            time, modulation = (x[tokens] for x in self.embed_time(timesteps, step))
        return time.unsqueeze(0), modulation.unsqueeze(0)

    def final_latents(self, latents_BCTHW: Tensor) -> Tensor:
        """Put the given frame back in the place of what the scheduler made of it."""
        condition = self.inputs.condition
        return latents_BCTHW if condition is None else torch.cat([condition, latents_BCTHW[:, :, 1:]], 2)


class WanImageEncoder(WanEncoder):
    """Encoders of text (UMT5) and, where the transformer reads an image embedding, of images (CLIP's vision tower)."""

    pipeline = "WanImageToVideoPipeline"

    def encode(self, prompt: str, negative_prompt: str, pictures: Sequence[Any] = ()) -> Inputs:
        inputs = super().encode(prompt, negative_prompt)
        if self.plan.facts.transformer.image_dim:
            inputs.image = self.pipe.encode_image(list(pictures), self.device).to(self.dtype)
        return inputs
