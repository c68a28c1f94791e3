"""The guardrail of Cosmos, with a checker of the tests' own in the place of NVIDIA's: what it blocks leaves no file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from hybridgen.engine import worker
from hybridgen.engine.job import Job
from hybridgen.engine.launch import launch
from hybridgen.engine.outputs import Outputs
from hybridgen.engine.prepare import make_job
from hybridgen.engine.video import Frames, read_tags
from hybridgen.errors import RequestError, RunFailed
from hybridgen.models import catalogue, registry
from hybridgen.models.checkpoint import from_folder
from hybridgen.models.cosmos.guardrail import CosmosGuardrail
from hybridgen.models.cosmos3 import facts as cosmos3_facts
from hybridgen.models.files import Folder
from hybridgen.models.tiny import cache
from hybridgen.recipe.compose import compose
from hybridgen.recipe.resolve import resolve
from tests.support.checkpoints import LAYERS, Case

FOUR = {"cfg": 2, "ulysses": 2, "vae": 2}
Flags = dict[str, Any]


class Checker:
    """Blocks prompts with "weapon"; of frames what `verdict` makes of them."""

    made: Path
    """A file with a line for every checker that was made, on whatever rank."""

    def __init__(self) -> None:
        with self.made.open("a") as file:
            file.write("made\n")

    def to(self, device: Any) -> None:
        pass

    def check_text_safety(self, prompt: str) -> bool:
        return "weapon" not in prompt

    verdict: Callable[[Frames], Frames | None] = staticmethod(lambda frames: frames)

    def check_video_safety(self, frames: Frames) -> Frames | None:
        assert frames.dtype == np.uint8 and frames.ndim == 4 and frames.shape[-1] == 3
        return self.verdict(frames)


@pytest.fixture
def checker(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> type[Checker]:
    """The package, with this checker in it; ranks are forked and so have it, too."""
    package = ModuleType("cosmos_guardrail")
    package.__spec__ = ModuleSpec("cosmos_guardrail", None)
    kind: Any = type("CosmosSafetyChecker", (Checker,), {"made": tmp_path_factory.mktemp("made") / "checkers"})
    package.CosmosSafetyChecker = kind  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cosmos_guardrail", package)
    return kind  # type: ignore[no-any-return]


def job_of(
    folder: Path, kind: str = "cosmos2.5", prompt: str = "a cat", latents: Path | None = None, **flags: Any
) -> Job:
    """A job with a checkpoint in a folder, which is guarded whatever its weights are."""
    frames = 1 if kind == "cosmos2-t2i" else 5
    model = str(Case(kind, changes=LAYERS).folder)
    request = {"model": model, "prompt": prompt, "size": "64x64", "frames": frames, "steps": 1, "seed": 1}
    recipe = compose(None, [], {**request, "dtype": "float32", "device": "cpu", **flags})
    plan = resolve(recipe)
    assert plan.facts.guarded
    out = folder / ("clip.png" if frames == 1 else "clip.mp4")
    return make_job(recipe, plan, Outputs(out, latents, preview=folder / "sheet.png"), quiet=True)


def refused(job: Job) -> str:
    """The message of a run that the guardrail ends; no file is there afterwards."""
    with pytest.raises(RunFailed) as failure:
        launch(job, "fork")
    assert failure.value.rule == "guardrail"
    assert list(job.output.parent.iterdir()) == []
    return failure.value.message


@pytest.mark.parametrize("degrees", [{}, FOUR], ids=["one rank", "four"])
def test_a_blocked_prompt_is_not_even_encoded(
    degrees: Flags, checker: type[Checker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ready(rank: Any) -> None:
        raise AssertionError("the prompt was encoded, or a model loaded")

    monkeypatch.setattr(worker, "ready", ready)
    assert "blocked the prompt; nothing was written" in refused(job_of(tmp_path, prompt="a weapon", **degrees))


@pytest.mark.parametrize("degrees", [{}, FOUR], ids=["one rank", "four"])
def test_of_blocked_frames_nothing_is_left(degrees: Flags, checker: type[Checker], tmp_path: Path) -> None:
    checker.verdict = staticmethod(lambda frames: None)
    assert "blocked the frames; nothing was written" in refused(job_of(tmp_path, **degrees))
    assert checker.made.read_text() == "made\n"  # by one rank, once


@pytest.mark.parametrize("verdict", [lambda frames: frames / 255, lambda frames: frames[:, ::2]])
def test_an_answer_that_is_no_such_frames_is_not_written(
    verdict: Callable[[Frames], Any], checker: type[Checker]
) -> None:
    checker.verdict = staticmethod(verdict)
    guardrail = CosmosGuardrail(torch.device("cpu"))
    with pytest.raises(ValueError, match="in the same form"):
        guardrail.checked(np.zeros((5, 8, 8, 3), np.uint8))


def test_what_is_written_are_the_frames_that_the_checker_returns(checker: type[Checker], tmp_path: Path) -> None:
    pictures = []
    for name, verdict in (("plain", lambda x: x), ("blurred", lambda x: 255 - x)):
        checker.verdict = staticmethod(verdict)
        folder = tmp_path / name
        folder.mkdir()
        job = job_of(folder, "cosmos2-t2i", ulysses=2)
        report = launch(job, "fork")
        assert report is not None
        assert sorted(path.name for path in folder.iterdir()) == ["clip.png", "sheet.png"]
        assert read_tags(job.output)["latents_sha256"] == report.latents_sha256
        pictures.append(np.asarray(Image.open(job.output)))
    assert np.array_equal(pictures[1], 255 - pictures[0])


def test_without_the_package_nothing_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cosmos_guardrail", None)  # not installed, even where it is
    monkeypatch.setattr("hybridgen.models.cosmos.guardrail.find_spec", lambda name: None)
    with pytest.raises(RequestError) as refusal:
        job_of(tmp_path)
    assert refusal.value.rule == "guardrail" and refusal.value.tries == ("pip install 'hybridgen[cosmos]'",)
    assert list(tmp_path.iterdir()) == []


def test_latents_would_show_what_was_blurred(checker: type[Checker], tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="--latents clip.safetensors: .* so latents cannot be kept"):
        job_of(tmp_path, latents=Path("clip.safetensors"))


def test_every_cosmos_model_but_the_random_ones_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    for model in registry.MODELS:
        assert model.guarded == model.pipeline.startswith("Cosmos"), model.name
    folder, folder3 = (Case(kind, changes=LAYERS).folder for kind in ("cosmos2.5", "cosmos3"))
    monkeypatch.setattr(cache, "checkpoint", lambda name: folder)
    assert from_folder(folder).guarded and not catalogue.find("tiny:cosmos2.5").guarded
    assert not from_folder(folder3).guarded
    large = from_folder(folder)  # as if put into the cache folder
    large = replace(large, transformer=replace(large.transformer, given_params=2_000_000_000))
    monkeypatch.setattr(catalogue, "from_folder", lambda path: large)
    assert catalogue.find("tiny:cosmos2.5").guarded
    for said, guarded in ({}, True), ({"enable_safety_checker": True}, True), ({"enable_safety_checker": False}, False):
        assert cosmos3_facts.model(Folder(folder3), said)["guarded"] == guarded
