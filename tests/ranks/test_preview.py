"""A picture of the clip while it is made: what it shows, with every strategy, and that the clip stays as it is."""

from __future__ import annotations

import errno
import os
import shutil
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler
from torch import Tensor

import hybridgen
from hybridgen.distributed.progress import Event
from hybridgen.engine.options import RunOptions
from hybridgen.engine.outputs import Outputs, check_outputs
from hybridgen.engine.preview import Previews, clean
from hybridgen.errors import RequestError
from hybridgen.models.guardrail import check_outputs as check_guarded
from tests.support.runs import pixels

Pictures = dict[int, np.ndarray[Any, np.dtype[np.int64]]]
ASKED: dict[str, Any] = {"frames": 9, "steps": 6, "seed": 3}
EXACT: list[dict[str, Any]] = [
    {"cfg": 2, "tp": 2, "vae": 2},
    {"ulysses": 2, "ring": 2},
    {"attn2d": "2x2"},
    {"model": "tiny:cosmos3", "ring": 2},
]


def make(folder: Path, every: int | None, **split: Any) -> tuple[str, list[int]]:
    """The clip's digest, and after which steps it was shown."""
    shown = []

    def hear(ticket: object, event: Event) -> None:
        if event.kind == "preview":
            assert (event.text, event.total) == (str(folder / "clip.preview.png"), ASKED["steps"])
            shown.append(event.done)

    fields = {"model": "tiny:wan2.2-t2v", "start_method": "fork", "on_event": hear, **ASKED, **split}
    with hybridgen.Engine(**fields) as engine:
        report = engine.generate("a lighthouse", folder / "clip.mp4", preview_every=every, overwrite=True)
    assert [path.name for path in folder.glob("clip*")] == ["clip.mp4"]
    return report.latents_sha256, shown


@pytest.fixture
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a copy of every picture, before another takes its name."""
    return copied(tmp_path, monkeypatch)


def copied(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    show, found = Previews.show, folder / "shown"
    found.mkdir()

    def kept(self: Previews, index: int, before: Tensor, after: Tensor) -> None:
        show(self, index, before, after)
        if self.rank.first:
            shutil.copy(self.rank.job.preview_picture, found / f"{index + 1 - self.late}.png")

    patch.setattr(Previews, "show", kept)
    return found


def pictures(folder: Path) -> Pictures:
    return {int(path.stem): pixels(path) for path in folder.iterdir()}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Pictures of one rank after every step, by model."""

    @lru_cache
    def found(model: str) -> Pictures:
        folder = tmp_path_factory.mktemp("alone")
        with pytest.MonkeyPatch.context() as patch:
            kept = copied(folder, patch)
            digest, shown = make(folder, 1, model=model)
        assert digest == make(folder, None, model=model)[0] and shown == [1, 2, 3, 4, 5]
        return pictures(kept)

    return found


@pytest.mark.parametrize("split", EXACT, ids=str)
def test_an_exact_split_shows_what_one_rank_shows(
    split: dict[str, Any], tmp_path: Path, copies: Path, alone: Any
) -> None:
    """And the clip has the same bits as without."""
    digest, shown = make(tmp_path, 2, **split)
    assert shown == [2, 4] and digest == make(tmp_path, None, **split)[0]
    found, expected = pictures(copies), alone(split.get("model", "tiny:wan2.2-t2v"))
    for done in shown:
        assert np.abs(found[done] - expected[done]).max() <= 1
    assert np.abs(expected[2] - expected[4]).max() > 3  # pictures of other steps are others


def test_pipefusion_shows_the_step_before(tmp_path: Path, copies: Path, alone: Any) -> None:
    """Of the first step after the warm-up the first stage has the state of the last one in it, which is exact."""
    split = {"pipefusion": 2, "patches": 2, "warmup": 2}
    digest, shown = make(tmp_path, 3, **split)
    assert shown == [2] and digest == make(tmp_path, None, **split)[0]
    assert np.abs(pictures(copies)[2] - alone("tiny:wan2.2-t2v")[2]).max() <= 1


def test_pipefusion_shows_no_step_whose_state_it_has_not_seen_change(tmp_path: Path, copies: Path, alone: Any) -> None:
    """Once a state was kept, nothing is under way: the next step changes nothing on the first stage."""
    outputs = Outputs(tmp_path / "clip.mp4", preview_every=1, keep_every=2)
    split: dict[str, Any] = {"pipefusion": 2, "patches": 2, "warmup": 1}
    with hybridgen.Engine(model="tiny:wan2.2-t2v", start_method="fork", **ASKED, **split) as engine:
        ticket = engine.ranks.submit(engine.job({"prompt": "a lighthouse"}, outputs))
        assert [event.done for event in ticket.events() if event.kind == "preview"] == [1, 3]
        ticket.result()
    assert np.abs(pictures(copies)[1] - alone("tiny:wan2.2-t2v")[1]).max() <= 1


SCHEDULERS = {
    "flow": UniPCMultistepScheduler(use_flow_sigmas=True, flow_shift=5.0, prediction_type="flow_prediction"),
    "variance": UniPCMultistepScheduler(),
    "euler": FlowMatchEulerDiscreteScheduler(shift=5.0),
}


@pytest.mark.parametrize(("kind", "limit"), [("flow", 0.02), ("variance", 0.02), ("euler", 1e-4)])
def test_two_states_give_the_clean_latents_of_the_step(kind: str, limit: float) -> None:
    """A model of which they are known, and which changes its mind from step to step."""
    scheduler, generator = SCHEDULERS[kind], torch.Generator().manual_seed(0)
    target, x = torch.randn(2, 1, 500, 4, generator=generator)
    scheduler.set_timesteps(30)
    scheduler.set_begin_index(0)
    for index, timestep in enumerate(scheduler.timesteps[:-1]):
        sigma = float(scheduler.sigmas[index])
        expected = target + 0.3 * sigma / (1 + sigma) * torch.sin(5 * target + x)
        kept = (sigma**2 + 1) ** -0.5
        out = (x - kept * expected) / (kept * sigma) if kind == "variance" else (x - expected) / sigma
        after = scheduler.step(out, timestep, x, return_dict=False)[0]
        assert (clean(scheduler, x, after, index) - expected).norm() < limit * expected.norm()
        x = after


def test_a_picture_that_cannot_be_made_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said once, and other ranks are not kept waiting."""

    def full(self: Previews, latents: Tensor) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Previews, "write", full)
    with hybridgen.Engine(model="tiny:wan2.2-t2v", start_method="fork", ulysses=2, **ASKED) as engine:
        report = engine.generate("a lighthouse", tmp_path / "clip.mp4", preview_every=1)
    (warning,) = report.warnings
    assert warning.startswith(str(tmp_path / "clip.preview.png")) and "No space left" in warning


def test_a_clip_that_is_given_up_leaves_no_picture(tmp_path: Path) -> None:
    with hybridgen.Engine(model="tiny:wan2.2-t2v", start_method="fork") as engine:
        ticket = engine.submit("a lighthouse", tmp_path / "clip.mp4", steps=400, preview_every=2)
        for event in ticket.events():
            if event.kind == "preview":
                assert Path(event.text).exists()
                ticket.cancel()
    assert ticket.cancelled and list(tmp_path.iterdir()) == []


def test_what_cannot_be_shown_is_refused(tmp_path: Path) -> None:
    assert RunOptions(preview_every=0).outputs.preview_every == 0
    video, other = tmp_path / "a.mp4", tmp_path / "a.preview.png"
    for outputs, rule in (
        (Outputs(preview_every=0), "quantity"),
        (Outputs(None, None, None, other, False, 2), "twice"),
    ):
        with pytest.raises(RequestError) as refused:
            check_outputs(outputs, video)
        assert rule in refused.value.rule and refused.value.flag == "preview-every"
    with pytest.raises(RequestError, match="--preview-every 2: the guardrail of cosmos"):
        check_guarded("cosmos", None, 2)
