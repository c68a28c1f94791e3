"""Given files are opened once, before the plan is made: what a dry run shows is what runs."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from hybridgen.api import spine
from hybridgen.engine import read_video
from hybridgen.engine.inputs import Conditioning
from hybridgen.engine.job import Job
from hybridgen.engine.options import RunOptions
from hybridgen.errors import RunFailed
from hybridgen.plan.plan import Plan
from hybridgen.recipe.fields import Recipe
from tests.support.checkpoints import LAYERS, Case

CASE = Case("cosmos2-v2w", video=7, changes=LAYERS)
"""A video of 7 frames, of which 5 fill latent frames; a clip of 17 could take over more."""


class Seen(spine.Screen):
    """Keeps what a run would show."""

    def planned(self, recipe: Recipe, plan: Plan, inputs: Conditioning, found: list[str]) -> None:
        self.plan, self.inputs, self.found = plan, inputs, found

    def ready(self, recipe: Recipe, job: Job, found: list[str]) -> None:
        self.plan, self.inputs, self.found = job.plan, job.inputs, found


@pytest.fixture
def fields(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The request, which no rank and no guardrail answers."""
    monkeypatch.setattr("hybridgen.models.cosmos.guardrail.find_spec", lambda _: True)
    monkeypatch.setattr("hybridgen.engine.launch.launch", lambda job, *_: job.report({}, [], [], ""))
    request = {"model": str(CASE.folder), "prompt": "x", "video": str(CASE.given_video())}
    return {**request, "size": "64x64", "frames": 17, "steps": 1, "device": "cpu", "ulysses": 2, "vae": 2}


def test_a_dry_run_shows_the_plan_that_runs(fields: dict[str, Any], tmp_path: Path) -> None:
    dry, wet = Seen(), Seen()
    out = tmp_path / "clip.mp4"
    assert spine.run(RunOptions(out=out, dry_run=True), fields, dry) is None
    assert spine.run(RunOptions(out=out), fields, wet) is not None
    assert dry.found == wet.found
    assert dry.plan == wet.plan and dry.plan.clip.encoded_frames == len(dry.inputs.images) == 5


def test_the_planner_chooses_for_the_video_that_is_given(fields: dict[str, Any], tmp_path: Path) -> None:
    chosen = []

    class Chosen(Seen):
        def chosen(self, choice: Any) -> None:
            chosen.append(choice.candidate.plan)

    screen = Chosen()
    options = RunOptions(out=tmp_path / "clip.mp4", auto=True, gpus=2, hardware="cpu")
    spine.run(options, fields, screen)
    assert chosen == [screen.plan]


def test_a_video_is_decoded_once(fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[Path] = []
    frames_of = read_video.frames_of

    def counted(path: Path, *seek: Sequence[str]) -> Iterator[read_video.Frame]:
        decoded.append(path)
        return frames_of(path, *seek)

    monkeypatch.setattr(read_video, "frames_of", counted)
    spine.run(RunOptions(out=tmp_path / "clip.mp4"), fields)
    assert decoded == [CASE.given_video()]


def test_ranks_but_the_first_are_sent_no_images(fields: dict[str, Any], tmp_path: Path) -> None:
    jobs: list[Job] = []

    class Sent(spine.Screen):
        def ready(self, recipe: Recipe, job: Job, found: list[str]) -> None:
            jobs.append(job)

    spine.run(RunOptions(out=tmp_path / "clip.mp4"), fields, Sent())
    (job,) = jobs
    other = job.without_images()
    assert other.inputs.images == () and other.request() == job.request()
    assert len(pickle.dumps(job)) > len(pickle.dumps(other)) + 5 * 96 * 80 * 3


def test_the_report_is_whole_before_anything_is_shown(
    fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the disk is full the old report stays, and there is no half of a new one."""
    report = tmp_path / "report.json"
    report.write_text("old")
    options = RunOptions(out=tmp_path / "clip.mp4", report=report, overwrite=True)
    write = Path.write_text

    def full(path: Path, text: str, **words: Any) -> int:
        write(path, text[:10], **words)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(RunFailed, match="No space left") as failed:
        spine.run(options, fields)
    assert failed.value.notes == (f"the clip is complete: {tmp_path / 'clip.mp4'}",)
    assert report.read_text() == "old" and list(tmp_path.iterdir()) == [report]
