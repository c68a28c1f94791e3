"""A job: a plan and everything else a rank needs to make one clip. Plain data, sent to every rank. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hybridgen.distributed.files import part_of
from hybridgen.engine.inputs import Conditioning
from hybridgen.engine.outputs import LATENTS, PREVIEW
from hybridgen.engine.report import PlanSummary, Report, RequestSummary, Timings, versions
from hybridgen.engine.resume import STATE
from hybridgen.engine.timing import Prediction, RankTimes
from hybridgen.models.registry import MODELS
from hybridgen.plan.facts import ModelFacts
from hybridgen.plan.kernels import Kernel
from hybridgen.plan.layout import Layout
from hybridgen.plan.plan import Clip, Plan
from hybridgen.plan.settings import Settings
from hybridgen.strategies.registry import Degrees

LATENTS_DONE = "latents"
"""Mark that rank 0 leaves once the final latents are on disk; its text is their path."""
CLIP_DONE = "clip"
"""Mark that rank 0 leaves once the clip has its name; its text is its path."""
STATE_KEPT = "state"
"""Mark that rank 0 leaves once the state between two steps is on disk; its text is the number of steps and the path."""


@dataclass(frozen=True)
class Setup:
    """What stays while ranks hold a model: the same for every clip that they make."""

    facts: ModelFacts
    layout: Layout
    dtype: str
    stages: tuple[int, ...]
    """PipeFusion: blocks of every stage."""
    kernel: Kernel
    device: str
    """The device of the ranks: "cuda" or "cpu"."""
    settings: Settings


@dataclass(frozen=True)
class Job:
    """One clip to be made."""

    plan: Plan
    kernel: Kernel
    device: str
    """The device of the ranks: "cuda" or "cpu"."""
    prompt: str
    negative_prompt: str
    seed: int
    output: Path
    inputs: Conditioning = Conditioning()
    """Images or video that the clip is conditioned on, opened; only rank 0 has them."""
    latents: Path | None = None
    """Where the final latents are kept for the user."""
    preview: Path | None = None
    """Where a contact sheet of the clip is written."""
    overwrite: bool = False
    owner: int = 0
    """Process that started the run; it names unfinished files."""
    quiet: bool = False
    threads: int = 1
    """Number of CPU threads of a rank."""
    keep_every: int = 0
    """Steps after which the state is kept, again and again; 0 is never, AUTO as often as costs next to nothing."""
    warning: int = 0
    """The signal after which the state is kept and the run ends; 0 is none."""
    preview_every: int = 0
    """Steps after which a frame of the clip is shown, again and again; 0 is never."""
    done: int = 0
    """Steps that are done in the state that the clip goes on from."""
    model: str = ""
    """The model as --model takes it in any folder; "" where that is its name."""
    source: Path | None = None
    """Final latents that an earlier run has kept; they are decoded, and nothing else is done."""
    source_sha256: str = ""
    """SHA-256 that these latents must have, if it is known."""
    record: str = ""
    """The record of that run, as JSON; the clip's own."""
    prediction: Prediction = Prediction()
    """What is predicted of a denoising step."""

    @property
    def setup(self) -> Setup:
        """What ranks must hold to make the clip."""
        plan = self.plan
        return Setup(plan.facts, plan.layout, plan.dtype, plan.stage_sizes, self.kernel, self.device, plan.settings)

    @property
    def part(self) -> Path:
        """Path of the video before it is complete."""
        return part_of(self.output, self.owner)

    @property
    def kept_latents(self) -> Path:
        """Path of the final latents: beside the clip until it is complete, unless they are to be kept elsewhere."""
        return self.latents or self.output.with_suffix(LATENTS)

    @property
    def state(self) -> Path:
        """Path of the state between two steps, until the clip is complete."""
        return self.output.with_suffix(STATE)

    @property
    def preview_picture(self) -> Path:
        """Path of the picture that shows the clip while it is made; it is removed when the clip is complete."""
        return self.output.with_suffix(PREVIEW)

    @property
    def files(self) -> list[Path]:
        """Every file that the run may write."""
        files = (self.output, self.kept_latents, self.preview, self.state, self.preview_picture)
        return [path for path in files if path is not None]

    @property
    def parts(self) -> list[Path]:
        """Every file of the run before it is complete; what is there after the run is left over."""
        shown = [self.preview_picture] if self.preview_every else []
        return [*(part_of(path, self.owner) for path in self.files), *shown]

    def without_images(self) -> Job:
        """The job without conditioning images, for all ranks except the first, which encodes them."""
        return replace(self, inputs=replace(self.inputs, images=()))

    def request(self) -> RequestSummary:
        """The request, with nothing left open."""
        clip, facts = self.plan.clip, self.plan.facts
        if self.record:
            return RequestSummary(**json.loads(self.record)["request"])
        settings = {**self.plan.settings.as_data(), "attention": self.kernel.name}
        given: dict[str, Any] = {**self.inputs.names, **settings}
        return RequestSummary(
            model=facts.name,
            revision=facts.revision,
            prompt=self.prompt,
            negative_prompt=self.negative_prompt,
            **given,
            size=f"{clip.width}x{clip.height}",
            frames=clip.frames,
            steps=clip.steps,
            guidance=clip.guidance,
            guidance_2=clip.guidances[1],
            seed=self.seed,
            fps=clip.fps,
            dtype=self.plan.dtype,
            device=self.device,
        )

    def report(
        self,
        seconds: Mapping[str, float],
        steps: Sequence[float],
        ranks: Sequence[Mapping[str, Any]],
        digest: str,
        warnings: Sequence[str] = (),
        times: Sequence[RankTimes] = (),
        prediction: Prediction = Prediction(),
    ) -> Report:
        """The report; `ranks` are traffic and memory of every rank, `digest` is that of the final latents."""
        return Report(
            plan=PlanSummary.of(self.plan),
            request=self.request(),
            timings_s=Timings.of(seconds, steps),
            traffic_bytes=tuple(rank["traffic"] for rank in ranks),
            peak_memory_bytes=tuple(rank["memory"] for rank in ranks),
            versions=versions(),
            seed=self.seed,
            output=self.output,
            latents_sha256=digest,
            warnings=tuple(warnings),
            ranks_s=tuple(times),
            prediction=prediction,
        )

    def about_latents(self, digest: str) -> dict[str, str]:
        """Metadata of the final latents' file, from which they can be decoded."""
        facts = self.plan.facts
        about = {"model": self.model or facts.name, "seed": str(self.seed), "prompt": self.prompt, "sha256": digest}
        revision = {"revision": facts.revision} if facts.revision else {}
        return {**about, **revision, "record": json.dumps(self.about(digest))}

    def about(self, digest: str) -> dict[str, Any]:
        """The clip's record, without time, host or path; that of the run that made the latents where they were kept."""
        if self.record:
            return dict(json.loads(self.record))
        return {
            "schema": 1,
            "request": asdict(self.request()),
            "plan": PlanSummary.of(self.plan).as_data(),
            "versions": versions(),
            "latents_sha256": digest,
        }

    def tags(self, digest: str) -> dict[str, str]:
        """Tags of the video, without time, host or path, so that equal clips are equal files."""
        about = self.about(digest)
        made = f"AI-generated with {about['request']['model']}, hybridgen {about['versions']['hybridgen']}"
        return {
            "title": self.prompt[:80],
            "description": f"{self.prompt} ({made})",
            "comment": json.dumps(about, separators=(",", ":")),
        }


PARTS = (Job, Plan, Clip, Degrees, Settings, Conditioning, Kernel, Prediction, *MODELS)
"""All that a job may be made of, for a rank that has none of its own to compare with."""
