"""Tiny checkpoints of any kind: on ranks, through the worker's own functions, and by diffusers in one process."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from hybridgen.distributed.processes import RankContext
from hybridgen.engine import worker
from hybridgen.engine.denoise import denoise, gather_latents
from hybridgen.engine.inputs import Conditioning, open_inputs
from hybridgen.engine.job import Job
from hybridgen.engine.rank import Rank, quiet_libraries, set_up
from hybridgen.engine.read_video import read_frames
from hybridgen.engine.video import VideoWriter
from hybridgen.models import load
from hybridgen.models.checkpoint import from_folder
from hybridgen.models.inputs import Inputs
from hybridgen.models.registry import KINDS, family_of
from hybridgen.models.tiny.build import build
from hybridgen.plan.facts import ModelFacts
from hybridgen.plan.kernels import select
from hybridgen.plan.plan import Plan
from hybridgen.plan.traffic import SETUP, by_strategy
from hybridgen.recipe.clip import clip_of
from hybridgen.recipe.fields import Request
from hybridgen.strategies import registry
from hybridgen.strategies.registry import Degrees
from tests.support import stock
from tests.support.ranks import run_ranks, without_memory
from tests.support.tiny import Outcome, changed

SEED = 7
LAYERS = (("layers", 2),)
"""Changes of a checkpoint that make it quicker."""
PROMPT, NEGATIVE = "a red ball rolls over the table, slowly", "blurry"  # of different lengths


@dataclass(frozen=True)
class Case:
    """A request to a tiny checkpoint."""

    kind: str
    """A key of KINDS."""
    images: int = 0
    """Given pictures: none, the first, or the first and the last."""
    video: int = 0
    """Frames of a given video."""
    size: str = "64x64"
    frames: int = 17
    steps: int = 3
    guidance: float = 4.0
    guidance_2: float | None = None
    changes: tuple[tuple[str, Any], ...] = ()
    """Other shapes of the transformer, as build() takes them."""
    index: tuple[tuple[str, Any], ...] = ()
    """What model_index.json says otherwise."""

    def __str__(self) -> str:
        pictures = ("", " from a picture", " between two pictures")[self.images]
        pictures += f" on from {self.video} frames" if self.video else ""
        return f"{self.kind}{pictures}, {self.size}, {self.frames} frames"

    @property
    def folder(self) -> Path:
        return _built(self.kind, self.changes, self.index)

    def pictures(self) -> list[Path]:
        """Files of the given pictures, of another size than the clip."""
        return [_picture(seed) for seed in range(self.images)]

    def given_video(self) -> Path | None:
        """File of the given video, of another size than the clip."""
        return _video(self.video) if self.video else None

    def facts(self) -> ModelFacts:
        """What the checkpoint is, under its kind's name and without a guardrail."""
        return replace(from_folder(self.folder), name=self.kind, defaults=KINDS[self.kind].defaults, guarded=False)

    def request(self) -> Request:
        """The request but for its prompt."""
        given = [str(path) for path in self.pictures()] + [None, None]
        return Request(
            image=given[0],
            last_image=given[1],
            video=None if self.video == 0 else str(self.given_video()),
            size=self.size,
            frames=self.frames,
            steps=self.steps,
            guidance=self.guidance,
            guidance_2=self.guidance_2,
        )

    def inputs(self) -> Conditioning:
        """The given pictures or video, opened."""
        return open_inputs(self.request(), self.facts())

    def plan(self, degrees: Degrees = Degrees(), dtype: str = "float32", **fields: Any) -> Plan:
        """Exact unless the fields say otherwise."""
        facts = self.facts()
        clip = clip_of(self.request(), facts, self.inputs().video_frames)
        return changed(Plan(facts, clip, degrees, dtype=dtype).with_options(warmup=clip.steps), **fields)


@lru_cache
def _built(kind: str, changes: tuple[tuple[str, Any], ...], index: tuple[tuple[str, Any], ...]) -> Path:
    folder = build(kind, Path(tempfile.mkdtemp(prefix="hybridgen-test-")), **dict(changes))
    said = folder / "model_index.json"
    said.write_text(json.dumps(json.loads(said.read_text()) | dict(index)))
    return folder


@lru_cache
def _picture(seed: int) -> Path:
    path = Path(tempfile.mkdtemp(prefix="hybridgen-test-")) / f"picture-{seed}.png"
    stock.picture(seed, 96, 80).save(path)
    return path


@lru_cache
def _video(frames: int) -> Path:
    """A picture that moves to the right."""
    path = Path(tempfile.mkdtemp(prefix="hybridgen-test-")) / f"video-{frames}.mp4"
    still = np.array(stock.picture(2, 96, 80))
    writer = VideoWriter(path, path.with_suffix(".part"), (96, 80), 8, {})
    writer.add(np.stack([np.roll(still, 5 * index, 1) for index in range(frames)]))
    writer.close()
    return path


@lru_cache
def stock_latents(case: Case, dtype: str = "float32") -> Tensor:
    """What diffusers' pipeline makes of the request, [1, C, T, H, W]."""
    return run_stock(case, stock.load(case.folder, getattr(torch, dtype), pictures=case.images > 0))


def run_stock(case: Case, pipe: Any) -> Tensor:
    """The same of a pipeline that is loaded already."""
    pictures = [stock.opened(path) for path in case.pictures()]
    given: dict[str, Any] = dict(zip(("image", "last_image"), pictures, strict=False))
    if case.guidance_2 is not None:
        given["guidance_scale_2"] = case.guidance_2
    if case.video:
        given["video"] = [Image.fromarray(frame) for frame in read_frames(_video(case.video))]
    width, height = map(int, case.size.split("x"))
    latents = stock.run(
        pipe,
        PROMPT,
        SEED,
        negative_prompt=NEGATIVE,
        width=width,
        height=height,
        num_frames=case.frames,
        num_inference_steps=case.steps,
        guidance_scale=case.guidance,
        fps=KINDS[case.kind].defaults.fps,
        **given,
    )
    return latents if latents.dim() == 5 else latents.unsqueeze(2)  # of a picture


def job_of(case: Case, plan: Plan, attention: str = "auto") -> Job:
    kernel = select(attention, "cpu", plan.dtype, plan.facts.transformer.head_dim, plan.degrees.cp > 1)
    return Job(plan, kernel, "cpu", PROMPT, NEGATIVE, SEED, Path("unused"), case.inputs(), quiet=True)


@lru_cache
def _inputs(case: Case, dtype: str) -> Inputs:
    plan = case.plan(dtype=dtype)
    encoder = family_of(plan.facts).denoiser(plan.facts).encoder(plan, case.folder, torch.device("cpu"))
    with torch.no_grad():
        return encoder.encode(PROMPT, NEGATIVE, list(case.inputs().images))


@lru_cache
def _loaded(case: Case, dtype: str) -> tuple[list[Any], Any]:
    """Transformers and autoencoder, whole; ranks that are forked take them and cut their own."""
    plan, cpu = case.plan(dtype=dtype), torch.device("cpu")
    experts = load.empty_experts(plan, case.folder)
    load.fill(experts, plan, case.folder, cpu)
    return experts, load.load_autoencoder(plan.facts, case.folder, cpu)


@contextmanager
def _given(rank: Rank, inputs: Inputs, experts: list[Any], vae: Any) -> Iterator[None]:
    """On a rank: what it would encode and load is this."""
    rank.seconds["encode"] = 0.0
    with patch.multiple(
        worker,
        encode=lambda _: inputs,
        empty_experts=lambda *_: experts,
        fill=lambda *_: None,
        load_autoencoder=lambda *_: vae,
    ):
        yield


def run_case(case: Case, plan: Plan, attention: str = "auto") -> Outcome:
    """Encode, load, denoise, and decode where that is parallel, on forked CPU ranks.

    One rank encodes and loads for itself; several are given what was encoded and loaded once, which saves half of the
    time. (tests/ranks/test_load.py has what a rank reads.)
    """
    job = job_of(case, plan, attention)
    given = (_inputs(case, plan.dtype), *_loaded(case, plan.dtype)) if plan.world_size > 1 else None

    def run_here(context: RankContext) -> tuple[Tensor | None, Tensor | None, dict[str, int], tuple[int, ...]]:
        quiet_libraries()
        without_memory()
        rank = set_up(context, job)
        with _given(rank, *given) if given else nullcontext():
            model = worker.ready(rank)
        latents, frames = gather_latents(rank, model, denoise(rank, model)), None
        if plan.degrees.vae > 1 and rank.mesh.is_on("vae"):
            frames = [chunk for chunk in model.slots.decode(latents) if chunk is not None]
        lengths = tuple(text.shape[1] for text in model.inputs.text)
        return latents, torch.cat(frames) if frames else None, dict(rank.mesh.traffic.sent), lengths

    results = run_ranks(plan.world_size, run_here, group=False)
    latents, frames, _, lengths = results[0]
    known = replace(plan, text_lengths=lengths)
    declared = [
        by_strategy(m for m in registry.traffic(known, rank) if m.strategy != SETUP) for rank in range(plan.world_size)
    ]
    sent = [{name: n for name, n in found.items() if n and name != SETUP} for _, _, found, _ in results]
    return Outcome(latents, frames, sent, declared)
