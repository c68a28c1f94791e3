"""A job: a plan and everything else a rank needs to make one clip. Plain data, sent to every rank. No torch."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from hybridgen.distributed.files import part_of
from hybridgen.plan.kernels import Kernel
from hybridgen.plan.plan import Plan

LATENTS_DONE = "latents"
"""Mark that a rank leaves once the final latents are on disk."""


@dataclass(frozen=True)
class Job:
    """One clip to be made."""

    plan: Plan
    kernel: Kernel
    device: str
    """"cuda" or "cpu"."""
    prompt: str
    negative_prompt: str
    seed: int
    output: Path
    image: Path | None = None
    """Picture that the clip starts from."""
    last_image: Path | None = None
    video: Path | None = None
    """Video that it continues."""
    latents: Path | None = None
    """Where the final latents are kept for the user."""
    preview: Path | None = None
    overwrite: bool = False
    owner: int = 0
    """The process whose run this is; names unfinished files."""
    quiet: bool = False
    threads: int = 1
    """CPU threads of a rank."""

    def pictures(self) -> list[Any]:
        """The given pictures as PIL images in RGB, the first frame first; of a given video the frames to encode."""
        if self.video is not None:
            from PIL import Image

            from hybridgen.engine.video import last_frames

            clip = self.plan.clip
            frames = last_frames(self.video, self.plan.facts.video_frames or clip.frames)
            return [Image.fromarray(frame) for frame in frames[: clip.encoded_frames]]
        from diffusers.utils import load_image

        return [load_image(str(path)) for path in (self.image, self.last_image) if path is not None]

    @property
    def part(self) -> Path:
        """The video before it is complete."""
        return part_of(self.output, self.owner)

    @property
    def scratch(self) -> Path:
        """The final latents until the video is complete, where they are not kept."""
        return part_of(self.output.with_suffix(".latents.safetensors"), self.owner)

    def request(self) -> dict[str, Any]:
        """What was asked for, as data."""
        clip = self.plan.clip
        return {
            "model": self.plan.facts.name,
            "revision": self.plan.facts.revision,
            "prompt": self.prompt,
            "negative_prompt": self.negative_prompt,
            "image": None if self.image is None else self.image.name,
            "last_image": None if self.last_image is None else self.last_image.name,
            "video": None if self.video is None else self.video.name,
            "size": f"{clip.width}x{clip.height}",
            "frames": clip.frames,
            "steps": clip.steps,
            "guidance": clip.guidance,
            "guidance_2": clip.guidances[1],
            "seed": self.seed,
            "fps": clip.fps,
            "dtype": self.plan.dtype,
            "attention": self.kernel.name,
            "device": self.device,
        }

    def plan_data(self) -> dict[str, Any]:
        plan = self.plan
        data = {
            "config": str(plan.degrees),
            "degrees": plan.degrees.as_data(),
            "order": list(plan.order),
            "world_size": plan.world_size,
            "exact": plan.exact,
        }
        if plan.degrees.pipefusion > 1:
            data |= {"stages": list(plan.stage_sizes), "patches": plan.tokens.patches, "warmup": plan.warmup}
        return data

    def report(
        self, seconds: dict[str, float], steps: list[float], ranks: list[dict[str, Any]], digest: str
    ) -> dict[str, Any]:
        """What happened, as data: the content of --report."""
        stages = ("load", "encode", "denoise", "decode", "write", "total")
        timings: dict[str, Any] = {stage: round(seconds.get(stage, 0.0), 4) for stage in stages}
        timings["steps"] = [round(s, 5) for s in steps]
        return {
            "plan": self.plan_data(),
            "request": self.request(),
            "timings_s": timings,
            "traffic_bytes": [rank["traffic"] for rank in ranks],
            "peak_memory_bytes": [rank["memory"] for rank in ranks],
            "versions": versions(),
            "seed": self.seed,
            "output": str(self.output),
            "latents_sha256": digest,
        }

    def tags(self, digest: str) -> dict[str, str]:
        """What the video says about itself; no time, host or path, so that equal clips are equal files."""
        about = {
            "schema": 1,
            "request": self.request(),
            "plan": self.plan_data(),
            "versions": versions(),
            "latents_sha256": digest,
        }
        made = f"AI-generated with {self.plan.facts.name}, hybridgen {versions()['hybridgen']}"
        return {
            "title": self.prompt[:80],
            "description": f"{self.prompt} ({made})",
            "comment": json.dumps(about, separators=(",", ":")),
        }


@lru_cache
def versions() -> dict[str, str]:
    """Versions of what makes the numbers."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for package in ("hybridgen", "torch", "diffusers", "transformers", "safetensors", "flash-attn"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    found.setdefault("hybridgen", "source")
    return found
