"""A look at a clip while it is denoised: a frame of the clean clip that a step predicts, as a picture beside the clip.

Two states of the latents on the way of a step give the clean ones where a straight way on would end: with clean latents
c and noise n a state is a c + b n, and a and b are known for both. The middle latent frame is decoded alone, by rank 0,
while the others go on until they need it. The picture is approximate, and nothing of it enters the clip.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hybridgen.distributed.files import written_whole
from hybridgen.distributed.progress import Event
from hybridgen.engine.rank import Rank
from hybridgen.models.denoiser import Denoiser

TRAFFIC = "preview"
"""Name under which the bytes of previews are counted."""


class Previews:
    """The previews of one clip, on one rank."""

    def __init__(self, rank: Rank, model: Denoiser) -> None:
        plan = rank.job.plan
        group = rank.mesh.sequence() if rank.job.preview_every else None
        self.rank, self.model, self.group = rank, model, group and replace(group, strategy=TRAFFIC)
        self.steps = plan.clip.steps
        self.late = int(plan.degrees.pipefusion > 1)
        """Steps by which the state is late: the first stage has that of the step before."""
        self.can_show = True

    def is_due(self, index: int, is_settled: bool) -> bool:
        """Whether a picture is made of the step with this index; the last one has the clip itself.

        is_settled: whether nothing was under way before the step. A late state is then the same before and after it.
        """
        done = index + 1
        if self.group is None or (self.late and is_settled):
            return False
        return done % self.rank.job.preview_every == 0 and done < self.steps

    def show(self, index: int, before: Tensor, after: Tensor) -> None:
        """Make the picture of a step, from this rank's part of the latents before and after it."""
        assert self.group is not None
        done = index + 1 - self.late
        self.rank.set_status(f"preview of step {done}")
        part = clean(self.model.scheduler, before, after, done - 1)
        shards = self.group.gather(part) if self.group.size > 1 else [part]
        if shards is None or not self.can_show:
            return
        path = self.rank.job.preview_picture
        try:
            self.write(self.model.final_latents(self.model.state.assemble(shards)))
        except (OSError, torch.OutOfMemoryError) as error:
            self.can_show = False
            why = getattr(error, "strerror", None) or "no memory is left to decode a frame"
            self.rank.warn(f"{path}: previews cannot be made ({why}); the run goes on")
            return
        self.rank.progress.tell(Event("preview", str(path), done, self.steps))

    def write(self, latents: Tensor) -> None:
        """Decode the middle latent frame of the full latents [1, C, T, H, W], and write it."""
        from PIL import Image

        middle = latents.shape[2] // 2
        pixels = next(iter(self.model.vae.decode(self.model.unnormalise(latents[:, :, middle : middle + 1]))))
        levels = (pixels[0, :, 0] / 2 + 0.5).nan_to_num().clamp(0, 1).mul(255).round().to(torch.uint8)
        with written_whole(self.rank.job.preview_picture, self.rank.job.owner) as part:
            Image.fromarray(levels.permute(1, 2, 0).cpu().numpy()).save(part, "png")


def clean(scheduler: Any, before: Tensor, after: Tensor, index: int) -> Tensor:
    """The clean latents on the straight way through the states before and after the step with this index, in fp32."""
    sigmas = scheduler.sigmas[index], scheduler.sigmas[index + 1]
    (a, b), (later_a, later_b) = (parts(scheduler, float(sigma)) for sigma in sigmas)
    return (b * after.float() - later_b * before.float()) / (later_a * b - a * later_b)


def parts(scheduler: Any, sigma: float) -> tuple[float, float]:
    """Parts (a, b) of clean latents and noise in a state a c + b n, for one of the scheduler's noise levels."""
    if "use_flow_sigmas" not in scheduler.config:
        return 1.0, sigma  # Euler's states lie on one straight way to no noise, so only the levels matter
    if scheduler.config.use_flow_sigmas:
        return 1 - sigma, sigma
    kept = (sigma**2 + 1) ** -0.5  # UniPC's levels are those of noise beside clean latents
    return kept, sigma * kept
