"""What a run reports: the plan that ran, the request as it was served, times, traffic and memory. No torch."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from hybridgen.engine import timing
from hybridgen.engine.timing import Prediction, RankTimes, Slowest
from hybridgen.plan.plan import Plan


@dataclass(frozen=True)
class PlanSummary:
    """The plan that ran."""

    config: str
    """Name of the plan, as in cfg2 ulysses4."""
    degrees: dict[str, Any]
    """Every degree, by the name of its flag."""
    order: tuple[str, ...]
    """Axes of the mesh, slowest first."""
    world_size: int
    exact: bool
    """Whether the clip differs from one rank's by rounding only."""
    stages: tuple[int, ...] | None = None
    """PipeFusion: blocks of every stage; None without it."""
    options: dict[str, int] = field(default_factory=dict)
    """Options of the strategies in use, by the name of their flag; in JSON, keys of the plan."""

    @staticmethod
    def of(plan: Plan) -> PlanSummary:
        """The summary of a plan."""
        return PlanSummary(
            config=str(plan.degrees),
            degrees=plan.degrees.as_data(),
            order=plan.order,
            world_size=plan.world_size,
            exact=plan.exact,
            stages=plan.stage_sizes if plan.degrees.pipefusion > 1 else None,
            options=plan.used_options(),
        )

    def as_data(self) -> dict[str, Any]:
        """The summary as JSON has it, options among the other keys, without what is None."""
        found = asdict(self)
        found |= found.pop("options")
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True)
class RequestSummary:
    """The request as it was served, nothing left open. Files are named without their folders."""

    model: str
    revision: str | None
    prompt: str
    negative_prompt: str
    image: str | None
    last_image: str | None
    video: str | None
    size: str
    """Width x height in pixels, as in 832x480."""
    frames: int
    steps: int
    guidance: float
    guidance_2: float
    """Guidance of the low-noise expert."""
    seed: int
    fps: int
    dtype: str
    attention: str
    """The attention kernel."""
    device: str
    weights: str | None = None
    """How matrices are held, if not in the dtype; this and the next are as in a recipe."""
    compile: bool | None = None
    cache: str | None = None
    timesteps: str | None = None


@dataclass(frozen=True)
class Timings:
    """Wall-clock seconds of rank 0, by stage."""

    load: float = 0.0
    encode: float = 0.0
    denoise: float = 0.0
    decode: float = 0.0
    write: float = 0.0
    total: float = 0.0
    steps: tuple[float, ...] = ()
    """Seconds of every denoising step."""

    @staticmethod
    def of(seconds: Mapping[str, float], steps: Sequence[float] = ()) -> Timings:
        """Timings from seconds by stage, rounded; stages that did not run take no time."""
        stages = ("load", "encode", "denoise", "decode", "write", "total")
        rounded = {stage: round(seconds.get(stage, 0.0), 4) for stage in stages}
        return Timings(**rounded, steps=tuple(round(step, 5) for step in steps))


@dataclass(frozen=True)
class Report:
    """What one run did. The fields are the keys of `hybridgen run --report`."""

    plan: PlanSummary
    request: RequestSummary
    timings_s: Timings
    traffic_bytes: tuple[dict[str, int], ...]
    """Bytes that every rank sent, by strategy; empty where another engine ran the plan."""
    peak_memory_bytes: tuple[int, ...]
    """Peak memory of every rank; empty where another engine ran the plan."""
    versions: dict[str, str]
    """Versions of the packages that make the result."""
    seed: int
    output: Path
    """Path of the video or image."""
    latents_sha256: str
    """SHA-256 of the final latents; "" where another engine ran the plan."""
    warnings: tuple[str, ...] = ()
    """What the ranks warned of, such as a prompt that is longer than what the model reads."""
    ranks_s: tuple[RankTimes, ...] = ()
    """Seconds that every rank computed and waited in each denoising step; empty where no step ran."""
    prediction: Prediction = Prediction()
    """What was predicted of a step, and how it was held."""

    @property
    def slowest(self) -> Slowest | None:
        """The rank that computes longest, for which the others wait; None where one rank or no step ran."""
        return timing.slowest(self.ranks_s)

    def as_data(self) -> dict[str, Any]:
        """The report as JSON has it."""
        slowest = self.slowest and asdict(self.slowest)
        parts = {"plan": self.plan.as_data(), "prediction": timing.plain(self.prediction), "slowest": slowest}
        return {**asdict(self), **parts, "output": str(self.output)}


PARTS = (Report, PlanSummary, RequestSummary, Timings, RankTimes, Prediction)
"""All that a report is made of, for a rank that has none of its own to compare with."""


@lru_cache
def versions() -> dict[str, str]:
    """Versions of the packages that make the result."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for package in ("hybridgen", "torch", "diffusers", "transformers", "safetensors", "flash-attn"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    found.setdefault("hybridgen", "source")
    return found
