"""A run that was ended goes on from its state: to the same bits on the same split, nearly so on another exact one."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save, save_file

from hybridgen.api.clips import ManyScreen, Wanted
from hybridgen.api.many import run_many
from hybridgen.api.session import Engine
from hybridgen.engine.job import Job
from hybridgen.engine.options import RunOptions
from hybridgen.engine.outputs import Outputs
from hybridgen.errors import RequestError, RunFailed
from tests.support import command
from tests.support.ranks import pids
from tests.support.runs import error, latents

ASKED = {"frames": 9, "steps": 16, "seed": 3, "prompt": "a lighthouse"}
WORDS = ("--frames", "9", "--steps", "16", "--seed", "3", "-p", "a lighthouse", "--out", "clip.mp4")


def run(folder: Path, model: str, done: int = 0, kill: int = 0, keep: int = 2, **split: Any) -> Path:
    """Make the clip, or go on with it; with `kill` a rank is killed after so many steps. The final latents' path."""
    kept = folder / f"{'-'.join(split)}-{done}.safetensors"
    outputs = Outputs(folder / "clip.mp4", kept, overwrite=True, keep_every=keep, resume=done > 0)
    with Engine(model=f"tiny:{model}", start_method="fork", fail_fast=True, **split) as engine:
        job = engine.job(ASKED, outputs)
        assert job.done == done
        ticket = engine.ranks.submit(job)
        for event in ticket.events():
            if kill and event.kind == "step" and event.done == kill:
                os.kill(pids(engine)[0], signal.SIGKILL)
        if kill:
            with pytest.raises(RunFailed, match="--resume goes on"):
                ticket.result()
        else:
            ticket.result()
            assert not job.state.exists()
    return kept


@pytest.mark.parametrize("model", ["wan2.2-t2v", "cosmos3"])
def test_a_killed_run_goes_on_to_the_same_bits(tmp_path: Path, model: str) -> None:
    """Over the switch of experts, too; another split, with another number of ranks, takes up the same state."""
    whole = latents(run(tmp_path, model, keep=0, cfg=2))
    run(tmp_path, model, kill=5, keep=4, cfg=2)
    state = (tmp_path / "clip.state.safetensors").read_bytes()
    assert latents(run(tmp_path, model, done=4, cfg=2)).equal(whole)
    (tmp_path / "clip.state.safetensors").write_bytes(state)
    assert error(latents(run(tmp_path, model, done=4, ulysses=2, ring=2)), whole) < 1e-5


def test_a_killed_pipeline_goes_on_with_a_fresh_warm_up(tmp_path: Path) -> None:
    """Where all steps are warm-up nothing is approximate, so the last stage's scheduler must remember every patch."""
    sync: dict[str, Any] = {"pipefusion": 2, "patches": 2, "warmup": 16}
    whole = latents(run(tmp_path, "wan2.2-t2v", keep=0, **sync))
    run(tmp_path, "wan2.2-t2v", kill=5, keep=4, **sync)
    assert error(latents(run(tmp_path, "wan2.2-t2v", done=4, **sync)), whole) < 1e-5
    pipeline = {**sync, "warmup": 1}
    for split in (pipeline, {**pipeline, "cfg": 2, "ulysses": 2}):
        kept = latents(run(tmp_path, "wan2.2-t2v", keep=0, **split))
        assert latents(run(tmp_path, "wan2.2-t2v", keep=3, **split)).equal(kept)  # keeping changes nothing
        run(tmp_path, "wan2.2-t2v", kill=5, keep=4, **split)
        on = latents(run(tmp_path, "wan2.2-t2v", done=4, **split))
        assert 0 < error(on, whole) < 1.5 * error(kept, whole)


def test_the_command_goes_on_and_refuses_the_state_of_another_clip(tmp_path: Path) -> None:
    tiny = ("run", "--model", "tiny:wan2.2-t2v", *WORDS)
    started = command.start(tmp_path, *tiny, "--checkpoint-every", "1")
    started.wait_for("denoise")
    state = tmp_path / "clip.state.safetensors"
    os.killpg(started.pid, signal.SIGTERM)
    ended = started.finish()
    if ended.returncode == 0:
        pytest.skip("the clip was made before the signal came")
    assert ended.returncode == 143 and state.exists(), ended.stderr
    for words in (("--steps", "7"), ("--seed", "4")):
        refused = command.hybridgen(tmp_path, *tiny, *words, "--resume")
        assert refused.returncode == 2 and "error[state-file]" in refused.stderr and "another clip" in refused.stderr
    done = command.hybridgen(tmp_path, *tiny, "--resume")
    assert done.returncode == 0 and "resume   after step" in done.stderr, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["clip.mp4"]


def test_a_damaged_state_is_refused(tmp_path: Path) -> None:
    with Engine(model="tiny:wan2.2-t2v", start_method="fork") as engine:
        outputs = Outputs(tmp_path / "clip.mp4", resume=True)
        assert engine.job(ASKED, outputs).done == 0  # there is none
        state = tmp_path / "clip.state.safetensors"
        about = {
            "steps_done": "2",
            "scheduler": "{}",
            "request": json.dumps(asdict(engine.job(ASKED, outputs).request())),
        }
        wrong = [{"steps_done": "0"}, {"steps_done": "99"}, {"steps_done": "x"}, {"scheduler": "["}, {"scheduler": "3"}]
        damaged = [save({"latents": np.zeros(1)}, about | one) for one in wrong] + [save({"x": np.zeros(1)}, about)]
        for content in (b"", b"\x08" + bytes(7) + b"{}      ", os.urandom(999), *damaged):
            state.write_bytes(content)
            with pytest.raises(RequestError, match="is not the state of a clip"):
                engine.job(ASKED, outputs)


class Asked(ManyScreen):
    """Keeps the jobs that a dry run of many clips looks at."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def asked(self, wanted: Wanted, job: Job) -> None:
        self.jobs.append(job)


def test_a_job_of_many_clips_keeps_states_and_goes_on_from_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("prompts.txt").write_text("a lighthouse\na storm\n")
    options = RunOptions(prompts="prompts.txt", checkpoint_every=2, dry_run=True)
    first, second = Asked(), Asked()
    run_many(options, {"model": "tiny:wan2.2-t2v", "steps": 6}, first)
    assert [job.keep_every for job in first.jobs] == [2, 2]
    about = {"steps_done": "4", "scheduler": "{}", "request": json.dumps(asdict(first.jobs[1].request()))}
    save_file({"latents": np.zeros(1, np.float32)}, first.jobs[1].state, about)
    run_many(replace(options, resume=True), {"model": "tiny:wan2.2-t2v", "steps": 6}, second)
    assert [job.done for job in second.jobs] == [0, 4]
