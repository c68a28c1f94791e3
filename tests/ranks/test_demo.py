"""The demo model shows what its captions say, by the worker's own path, with seeds that training never drew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from examples.train_demo.clips import CAPTIONS
from hybridgen.distributed.processes import RankContext
from hybridgen.engine.denoise import denoise
from hybridgen.engine.job import Job
from hybridgen.engine.outputs import Outputs
from hybridgen.engine.prepare import make_job
from hybridgen.engine.rank import quiet_libraries, set_up
from hybridgen.engine.worker import load
from hybridgen.models import catalogue
from hybridgen.models.wan.denoiser import WanEncoder
from hybridgen.recipe.compose import compose
from hybridgen.recipe.resolve import resolve
from tests.support.judge import Verdict, expected, judge
from tests.support.ranks import run_ranks

FIRST_SEED = 500_000
RANKS = 2


def job(caption: str, index: int, dtype: str) -> Job:
    options = {"model": "demo", "device": "cpu", "dtype": dtype, "prompt": caption, "seed": FIRST_SEED + index}
    recipe = compose(None, [], options)
    return make_job(recipe, resolve(recipe), Outputs(video=Path("unused.mp4")), quiet=True)


def verdicts(captions: list[tuple[int, str]], dtype: str, context: RankContext) -> list[tuple[str, Verdict]]:
    """Make clips on this rank alone, without files: the frames as they go to the writer, judged."""
    alone = RankContext(0, 1, 0, context.status)
    first = set_up(alone, job(captions[0][1], captions[0][0], dtype))
    encoder = WanEncoder(first.job.plan, catalogue.DEMO_FOLDER, first.device)
    model, found = load(first), []
    for index, caption in captions:
        rank = replace(first, job=job(caption, index, dtype))
        model.set_inputs(encoder.encode(caption, ""))
        chunks = model.slots.decode(denoise(rank, model))
        frames = torch.cat([chunk for chunk in chunks if chunk is not None])
        found.append((caption, judge(frames.numpy() / 255.0)))
    first.memory.close()
    return found


def test_captions_are_shown() -> None:
    """At least 95% of 24, colour, shape and direction together, half of them in bf16."""
    dtypes = ("float32", "bfloat16")
    captions = sorted(enumerate(CAPTIONS), key=lambda pair: pair[0] * 37 % len(CAPTIONS))[:24]  # of every kind

    def share(context: RankContext) -> list[tuple[str, Verdict]]:
        quiet_libraries()
        return verdicts(captions[context.rank :: RANKS], dtypes[context.rank], context)

    shown = [pair for part in run_ranks(RANKS, share, deadline=400, group=False) for pair in part]
    wrong = [(caption, verdict) for caption, verdict in shown if verdict != expected(caption)]
    assert len(shown) == len(captions)
    assert len(wrong) <= 0.05 * len(shown), wrong


def test_the_checkpoint_is_small_and_names_no_machine() -> None:
    files = [path for path in catalogue.DEMO_FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 8e6
    for path in files:
        assert path.suffix != ".json" or "_name_or_path" not in path.read_text()
