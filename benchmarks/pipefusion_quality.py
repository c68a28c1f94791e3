"""What stale K/V costs: clips of the demo made with PipeFusion, compared with the exact clips of the same seeds.

    python -m benchmarks.pipefusion_quality                          measure what is missing, then table and plots
    python -m benchmarks.pipefusion_quality --steps 20 --patches 4   only this part
    python -m benchmarks.pipefusion_quality --report --strip         from the results that are there; draws frames, too

Needs the extra `benchmarks`. Results are kept in benchmarks/results/pipefusion-quality.json after every group of clips,
so a run can be stopped and continued; 15 minutes on two cores in all. Every clip goes through the worker's own
functions; frames are compared as they are handed to the video writer.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.demo_quality import CAPTIONS, FIRST_SEED
from benchmarks.pipefusion_report import (
    RESULTS,
    STRIP_CELL,
    Options,
    Result,
    draw_strip,
    find,
    report,
    strip_clips,
)
from hybridgen.distributed.processes import RankContext
from hybridgen.engine.denoise import denoise, gather_latents
from hybridgen.engine.job import Job
from hybridgen.engine.outputs import Outputs
from hybridgen.engine.prepare import make_job
from hybridgen.engine.rank import quiet_libraries, set_up
from hybridgen.engine.video import Frames
from hybridgen.engine.worker import load
from hybridgen.models import catalogue
from hybridgen.models.autoencoder import Autoencoder, to_uint8
from hybridgen.models.inputs import Inputs
from hybridgen.models.load import load_autoencoder
from hybridgen.models.wan.denoiser import WanEncoder
from hybridgen.recipe.compose import compose
from hybridgen.recipe.resolve import resolve
from tests.support.judge import BRIGHT, MIN_AREA, expected, judge, largest_blobs, overlaps
from tests.support.ranks import run_ranks

T = TypeVar("T")
EVERY = 5
"""Every fifth of the 96 captions: all colours, shapes and directions, with the seeds of demo_quality.py."""
STEPS, PATCHES, WARMUPS = (10, 20, 40), (2, 4, 8), (1, 2, 3, 5, 10)
EXACT: Options = {}
CORES = 2
DEADLINE = 900.0
"""Seconds for the clips of one variant."""
EQUAL_DB = 100.0
"""PSNR given to clips that are equal, or differ by one level in one number."""


def job(number: int, steps: int, options: Options) -> Job:
    """The job that `hybridgen run` with these flags makes of a caption."""
    request = {"model": "demo", "device": "cpu", "prompt": CAPTIONS[number], "seed": FIRST_SEED + number}
    recipe = compose(None, [], {**request, "steps": steps, **options})
    return make_job(recipe, resolve(recipe), Outputs(video=Path("unused.mp4")), quiet=True)


@cache
def encoded(numbers: tuple[int, ...], dtype: str) -> list[Inputs]:
    """Inputs of these captions."""

    def here(context: RankContext) -> list[Inputs]:
        quiet_libraries()
        rank = set_up(context, job(numbers[0], 1, {"dtype": dtype}))
        encoder = WanEncoder(rank.job.plan, catalogue.DEMO_FOLDER, rank.device)
        return [encoder.encode(CAPTIONS[number], "") for number in numbers]

    found: list[Inputs] = run_ranks(1, here, group=False)[0]
    return found


def made(numbers: tuple[int, ...], steps: int, options: Options) -> list[Tensor]:
    """Final latents [1, C, T, H, W] by caption."""
    jobs = [job(number, steps, options) for number in numbers]
    inputs = encoded(numbers, jobs[0].plan.dtype)

    def here(context: RankContext) -> list[Tensor | None]:
        quiet_libraries()
        first, found = set_up(context, jobs[0]), []
        for given, given_inputs in zip(jobs, inputs, strict=True):
            rank = replace(first, job=given)
            model = load(rank)  # anew for every clip, as in a run
            model.set_inputs(given_inputs)
            found.append(gather_latents(rank, model, denoise(rank, model)))
        return found

    latents: list[Tensor] = run_ranks(jobs[0].plan.world_size, here, deadline=DEADLINE, group=False)[0]
    return latents


def shared(work: Callable[[Any], T], items: list[Any]) -> list[T]:
    """work(item) of every item, on all cores."""
    parts = run_ranks(CORES, lambda c: [work(item) for item in items[c.rank :: CORES]], deadline=DEADLINE, group=False)
    return [parts[i % CORES][i // CORES] for i in range(len(items))]


@cache
def vae() -> Autoencoder:
    return load_autoencoder(catalogue.find("demo"), catalogue.DEMO_FOLDER, torch.device("cpu"))


def decoded(latents: Tensor) -> Frames:
    return torch.cat([to_uint8(p) for p in vae().decode(vae().unnormalise(latents))]).numpy()


def outline(frames: NDArray[np.floating], shape: str) -> float:
    """How well what moves in frames [T, H, W, 3] fills the ideal shape of the same area: intersection over union."""
    blobs = largest_blobs(frames.max(-1) > BRIGHT)
    seen = blobs.sum((1, 2)) >= MIN_AREA
    return overlaps(blobs[seen])[shape] if seen.any() else 0.0


def compared(clip: tuple[int, Tensor, Tensor, Frames]) -> dict[str, float]:
    """Number of the caption, latents, latents and frames to compare with -> the measures of one clip."""
    from skimage.metrics import structural_similarity

    number, latents, reference, reference_frames = clip
    frames = decoded(latents)
    error = float(((frames.astype(float) - reference_frames) ** 2).mean())
    ssim = [structural_similarity(a, b, channel_axis=-1) for a, b in zip(frames, reference_frames, strict=True)]
    return {
        "relative_error": ((latents - reference).norm() / reference.norm()).item(),
        "psnr": min(10 * float(np.log10(255**2 / error)), EQUAL_DB) if error else EQUAL_DB,
        "ssim": float(np.mean(ssim)),
        "shown": float(judge(frames / 255.0) == expected(CAPTIONS[number])),
        "outline": outline(frames / 255.0, expected(CAPTIONS[number]).shape or ""),
    }


def variants(steps: int, patches: list[int]) -> Iterator[Options]:
    """What is compared with the exact run, that one first."""
    yield EXACT
    yield {"dtype": "bfloat16"}
    yield {"steps": steps // 2}
    for number in patches:
        for warmup in (*(warmup for warmup in WARMUPS if warmup < steps), steps):
            yield {"pipefusion": 2, "patches": number, "warmup": warmup}


def compare(
    steps: int, given: Iterable[Options], against: Options, numbers: tuple[int, ...], results: list[Result]
) -> None:
    """Add what is missing of one number of steps to the results, and write them down each time."""
    missing = [options for options in given if find(results, steps, options) is None]
    if not missing:
        return
    references = made(numbers, steps, against)
    reference_frames = shared(decoded, references)
    for options in missing:
        start = time.monotonic()
        latents = made(numbers, steps, options)
        clips = shared(compared, list(zip(numbers, latents, references, reference_frames, strict=True)))
        columns = {name: [float(f"{clip[name]:.4g}") for clip in clips] for name in clips[0]}
        about = {"steps": steps, "options": options, "against": against, "synchronous": synchronous(steps, options)}
        results.append({**about, **columns})
        RESULTS.write_text("[" + ",\n".join(map(json.dumps, results)) + "]\n")
        print(f"{steps} steps, {options}: {time.monotonic() - start:.0f} s", file=sys.stderr)


@cache
def experts(steps: int) -> list[int]:
    """Which expert runs each step."""

    def here(context: RankContext) -> list[int]:
        quiet_libraries()
        return [step.expert for step in load(set_up(context, job(0, steps, {}))).schedule()]

    found: list[int] = run_ranks(1, here, group=False)[0]
    return found


def synchronous(steps: int, options: Options) -> int:
    """How many of the steps are without stale K/V."""
    warmup = options.get("warmup")
    if not isinstance(warmup, int):
        return steps
    return sum(min(warmup, experts(steps).count(expert)) for expert in (0, 1))


def strip(numbers: tuple[int, ...], results: list[Result]) -> None:
    """Draw the middle frame of some clips, exact and with stale K/V."""
    steps, patches = STRIP_CELL
    numbers = tuple(numbers[place] for place in strip_clips(results))
    flags = {f"warm-up {warmup}": {"pipefusion": 2, "patches": patches, "warmup": warmup} for warmup in (1, 3, 5)}
    clips = {
        name: shared(decoded, made(numbers, steps, options)) for name, options in {"exact": EXACT, **flags}.items()
    }
    middles = {name: [frames[len(frames) // 2] for frames in row] for name, row in clips.items()}
    draw_strip(middles, [CAPTIONS[number] for number in numbers])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, nargs="+", default=STEPS)
    parser.add_argument("--patches", type=int, nargs="+", default=PATCHES)
    parser.add_argument("--every", type=int, default=EVERY, help="every n-th caption only")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--strip", action="store_true", help="draw frames, too (makes 24 clips again)")
    arguments = parser.parse_args()
    numbers = tuple(range(0, len(CAPTIONS), arguments.every))
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    for steps in [] if arguments.report else arguments.steps:
        compare(steps, variants(steps, arguments.patches), EXACT, numbers, results)
        if steps == 20 and 4 in arguments.patches:  # does the number of stages matter?
            one, *others = ({"pipefusion": stages, "patches": 4, "warmup": 1} for stages in (2, 3, 4))
            compare(steps, others, one, numbers, results)
    report(results)
    if arguments.strip:
        strip(numbers, results)


if __name__ == "__main__":
    main()
