"""Cosmos Predict 2 and 2.5: what diffusers' three pipelines feed the transformer, and what they make of predictions."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from hybridgen.distributed.sequence import Shard
from hybridgen.models.cosmos.denoiser import Cosmos
from hybridgen.models.denoiser import Denoiser
from hybridgen.models.slots import Pass, Step
from hybridgen.plan.kernels import Kernel
from hybridgen.plan.plan import Plan

GIVEN_TIME = 0.0001
"""Noise level of conditioning frames: the default of both pipelines that have them."""


class Predict2(Cosmos):
    """Predict 2: noise of scale 80, which the transformer gets scaled down, and whose clean latents it predicts."""

    sigmas: ClassVar[dict[str, Any]] = {
        "sigma_max": 80.0,
        "sigma_min": 0.002,
        "sigma_data": 1.0,
        "final_sigmas_type": "sigma_min",
    }
    """Values that the pipelines write into the scheduler's configuration, whatever the checkpoint says."""

    def __init__(self, plan: Plan, experts: list[Any], scheduler: Any, kernel: Kernel, shard: Shard) -> None:
        super().__init__(plan, experts, scheduler, kernel, shard)
        scheduler.register_to_config(**self.sigmas)

    def set_timesteps(self) -> None:
        steps = torch.linspace(0, 1, self.plan.clip.steps, dtype=torch.float64)
        self.scheduler.set_timesteps(sigmas=steps, device=self.device)
        self.scheduler.sigmas[-1] = self.scheduler.sigmas[-2]  # the last step ends at sigma_min, not at 0

    def initial_latents(self, generator: torch.Generator) -> Tensor:
        latents: Tensor = super().initial_latents(generator) * self.scheduler.config.sigma_max
        return latents

    def time(self, step: Step) -> Tensor:
        """The share of noise in x, a number between 0 and 1."""
        sigma: Tensor = self.scheduler.sigmas[step.index]
        return sigma / (sigma + 1)

    def transformer_input(self, x: Tensor, step: Step, now: Pass) -> Tensor:
        return x * (1 - self.time(step))

    def clean(self, prediction: Tensor, x: Tensor, step: Step, now: Pass) -> Tensor:
        """Clean latents that one branch predicts for a part x of the state."""
        time = self.time(step)
        return ((1 - time) * x + -time * prediction.float()).to(self.dtype)

    def combine(self, predictions: list[Tensor], x: Tensor, step: Step, now: Pass) -> Tensor:
        clean = self.guided([self.clean(prediction, x, step, now) for prediction in predictions], step)
        slope: Tensor = (x - clean) / self.scheduler.sigmas[step.index]
        return slope


class TextToImage(Predict2):
    """Predict 2 text to image: one latent frame, and one time for all tokens."""

    def times(self, step: Step, now: Pass) -> tuple[Tensor, Tensor]:
        time, embedded = self.embed_times(self.time(step).expand(1).to(self.dtype))
        return embedded, time


class VideoToWorld(Predict2):
    """Predict 2 video to world: a clip that starts with a given image or video.

    The stock pipeline has masks and given latents for each branch, but they are equal.
    """

    def positions_fps(self) -> int:
        return self.plan.clip.fps

    def frame_times(self, step: Step) -> Tensor:
        given = torch.tensor(GIVEN_TIME, dtype=torch.float32, device=self.device)
        where = self.where_given()
        return (where * (given / (given + 1)) + (1 - where) * self.time(step)).to(self.dtype)

    def transformer_input(self, x: Tensor, step: Step, now: Pass) -> Tensor:
        return self.filled(super().transformer_input(x, step, now), now)

    def clean(self, prediction: Tensor, x: Tensor, step: Step, now: Pass) -> Tensor:
        return self.filled(super().clean(prediction, x, step, now), now)

    def initial_latents(self, generator: torch.Generator) -> Tensor:
        self.noise_of_given(generator)  # the stock pipeline draws it from the same generator before the clip's
        return super().initial_latents(generator)

    def noise_of_given(self, generator: torch.Generator) -> Tensor:
        """Noise that samples the latents of the given frames, for as many frames as the clip has."""
        return Denoiser.initial_latents(self, generator)

    def condition_latents(self, moments: Tensor, generator: torch.Generator) -> Tensor:
        from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution

        found = DiagonalGaussianDistribution(moments)
        noise = self.noise_of_given(generator)[:, :, : moments.shape[2]]
        mean, std = self.vae.statistics(moments)
        return (found.mean + found.std * noise - mean) / std  # type: ignore[no-any-return]

    def unnormalise(self, latents_BCTHW: Tensor) -> Tensor:
        mean, std = self.vae.statistics(latents_BCTHW)
        return (latents_BCTHW * std + mean).to(self.vae.dtype)


class Predict25(Cosmos):
    """Predict 2.5: flow matching from text, from an image, or from the end of a video.

    The velocity of given frames is known: from their latents to the noise that they started as.
    """

    resample = "bilinear"

    def __init__(self, plan: Plan, experts: list[Any], scheduler: Any, kernel: Kernel, shard: Shard) -> None:
        super().__init__(plan, experts, scheduler, kernel, shard)
        self._velocity: Tensor | None = None
        """The velocity of given frames, 0 elsewhere, in the form of x."""

    def set_timesteps(self) -> None:
        self.scheduler.set_timesteps(self.plan.clip.steps, device=self.device)

    def initial_latents(self, generator: torch.Generator) -> Tensor:
        noise, condition = super().initial_latents(generator), self.inputs.condition
        if condition is not None:
            where = self.where_given().view(1, 1, -1, 1, 1)
            self._velocity = self.state.cut((noise - self.padded(condition)) * where)
        return noise

    def frame_times(self, step: Step) -> Tensor:
        where = self.where_given()
        sigma = self.scheduler.sigmas[step.index].to(self.device, torch.float32)
        times: Tensor = where * GIVEN_TIME + (1 - where) * sigma
        return times

    def transformer_input(self, x: Tensor, step: Step, now: Pass) -> Tensor:
        return self.filled(x, now)

    def combine(self, predictions: list[Tensor], x: Tensor, step: Step, now: Pass) -> Tensor:
        return self.guided([self.velocity(prediction, now) for prediction in predictions], step)

    def velocity(self, prediction: Tensor, now: Pass) -> Tensor:
        """One branch's prediction, with the known velocity of conditioning frames in its place."""
        if self.given is None or self._velocity is None:
            return prediction.float()
        where = self.state.here(self.given.where, now.patch)
        return self.state.here(self._velocity, now.patch) + prediction * (1 - where)

    def as_processed(self, pictures: list[Any]) -> Any:
        """Images for the pipeline's processor: a single one as a tensor, which is resized differently from frames."""
        if self.plan.clip.video:
            return pictures
        pixels = torch.from_numpy(np.array(pictures[0])).permute(2, 0, 1).contiguous()
        return pixels.float().div(255)[None, None]
