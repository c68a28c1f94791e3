"""However a run ends, it ends soon, says why once, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import safetensors.torch
import torch
import torch.distributed as dist

from hybridgen.cli.main import call
from hybridgen.distributed.processes import RankContext
from hybridgen.engine import decode, worker
from hybridgen.engine.job import Job
from hybridgen.engine.video import Frames, VideoWriter
from hybridgen.errors import RunFailed
from hybridgen.models.wan.denoiser import WanEncoder
from tests.support.command import Command, start
from tests.support.ranks import run_ranks

SECONDS = 60


@pytest.mark.parametrize("how", ["raises", "is killed", "exits", "leaves"])
@pytest.mark.parametrize("victim", [0, 2])
def test_the_first_rank_to_fail_is_named_while_its_peers_wait(how: str, victim: int) -> None:
    def work(context: RankContext) -> None:
        dist.all_reduce(torch.zeros(1))
        context.status.set("step 3/9, ring hop")
        if context.rank == victim:
            time.sleep(0.2)  # the others are inside the collective by now
            if how == "raises":
                raise ValueError("disk on fire")
            if how == "exits":
                os._exit(7)
            if how == "leaves":
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.zeros(1))

    with pytest.raises(RunFailed) as failed:
        run_ranks(4, work, kept=False)
    cause = {
        "raises": "ValueError: disk on fire",
        "is killed": "killed by SIGKILL",
        "exits": "exited with code 7",
        "leaves": "exited with code 0",
    }[how]
    assert f"rank {victim} of 4" in failed.value.message
    assert "in step 3/9, ring hop" in failed.value.message
    assert cause in failed.value.message
    assert len(failed.value.lines()) == 1


@pytest.fixture
def long_run(tmp_path: Path) -> Iterator[Command]:
    """A long `hybridgen run` on 4 ranks, which has done some steps, in a folder of its own."""
    words = "run --model demo --cfg 2 --ulysses 2 --steps 2000 --out clip.mp4 -p".split()
    run = start(tmp_path, *words, "a red circle moves right")
    run.wait_for("s/step")
    yield run
    with suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)


def children(pid: int) -> list[int]:
    """Processes started by a process, oldest first: rank 0 first."""
    return sorted(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(pids: list[int]) -> bool:
    """Whether all are gone within a second."""
    end = time.monotonic() + 1
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.02)
    return not any(map(alive, pids))


def test_a_killed_rank_ends_the_run(long_run: Command, tmp_path: Path) -> None:
    ranks = children(long_run.pid)
    assert len(ranks) == 4
    os.kill(ranks[2], signal.SIGKILL)
    done = long_run.finish(SECONDS)
    errors = done.stderr
    assert done.returncode == 1
    assert errors.count("error[") == 1
    assert "error[rank-lost]: rank 2 of 4" in errors and "killed by SIGKILL" in errors and "in step " in errors
    assert "Traceback" not in errors
    assert gone(ranks) and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run(long_run: Command, tmp_path: Path, number: signal.Signals, code: int) -> None:
    ranks = children(long_run.pid)
    if number == signal.SIGINT:
        os.killpg(long_run.pid, number)  # as a terminal sends Ctrl-C: to every process
    else:
        os.kill(long_run.pid, number)
    done = long_run.finish(SECONDS)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert ("\nstopped\n" if number == signal.SIGINT else "\nstopped by SIGTERM\n") in done.stderr
    assert gone(ranks) and list(tmp_path.iterdir()) == []


def test_ranks_do_not_outlive_a_killed_launcher(long_run: Command) -> None:
    ranks = children(long_run.pid)
    os.kill(ranks[1], signal.SIGSTOP)
    os.kill(long_run.pid, signal.SIGKILL)
    os.waitpid(long_run.pid, 0)
    assert len(ranks) == 4
    assert gone(ranks)


STAGES = {
    "load text encoder": (WanEncoder, "__init__"),
    "load": (worker, "fill"),
    "keep latents": (safetensors.torch, "save"),
    "decode": (VideoWriter, "add"),
    "write": (VideoWriter, "close"),
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_failure_in_any_stage_names_it_and_keeps_what_was_done(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Rank 0 of 2 raises; latents that were done are on disk and named, and there is no half of a video."""

    def fail(*_: object, **__: object) -> None:
        raise ValueError("it gave up")

    monkeypatch.setattr(*STAGES[stage], fail)  # ranks are forked, so they inherit it
    monkeypatch.chdir(tmp_path)
    assert call("run --model demo -p x --ring 2 --vae 2 --steps 2 --out clip.mp4".split()) == 1
    out, err = capfd.readouterr()
    assert err.count("error[") == 1 and out == ""
    assert "error[rank-lost]: rank" in err and f"failed in {stage}" in err
    assert "ValueError: it gave up" in err
    kept = ["clip.latents.safetensors"] if stage in ("decode", "write") else []
    assert [path.name for path in tmp_path.iterdir()] == kept
    assert ("kept: clip.latents.safetensors" in err) == bool(kept)


def test_a_rank_that_is_killed_while_it_writes_leaves_no_half_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def die(_: object, path: Path, *__: object) -> None:
        path.write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr("PIL.Image.Image.save", die)
    monkeypatch.chdir(tmp_path)
    assert call("run --model demo -p x --steps 1 --out clip.mp4 --preview sheet.png".split()) == 1
    assert "killed by SIGKILL" in capfd.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clip.latents.safetensors", "clip.mp4"]


def test_latents_survive_a_folder_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The folder of --out goes away while the video is decoded, with the latents in it: they are kept a second time."""
    add = VideoWriter.add

    def gone(writer: VideoWriter, frames: Frames) -> None:
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        add(writer, frames)

    monkeypatch.setattr(VideoWriter, "add", gone)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    assert call("run --model demo -p x --steps 1 --out out/clip.mp4".split()) == 1
    err = capfd.readouterr().err
    kept = tmp_path / "clip.latents.safetensors"
    assert f"kept: {kept} (the final latents)" in err and "out/clip.mp4" in err
    assert safetensors.torch.load_file(kept)["latents"].shape == (1, 16, 5, 8, 8)


def test_latents_have_a_second_place_where_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    written = decode._written

    def full(content: bytes, path: Path, job: Job) -> Path:
        if path.parent.name == "out":
            raise OSError(28, "No space left on device")
        return written(content, path, job)

    def fail(*_: object) -> None:
        raise ValueError("it gave up")

    monkeypatch.setattr(decode, "_written", full)
    monkeypatch.setattr(VideoWriter, "add", fail)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    assert call("run --model demo -p x --steps 1 --out out/clip.mp4".split()) == 1
    err, kept = capfd.readouterr().err, tmp_path / "clip.latents.safetensors"
    assert "warning: out/clip.latents.safetensors cannot be written (No space left on device)" in err
    assert f"kept: {kept}" in err and kept.exists() and not any((tmp_path / "out").iterdir())


def test_a_name_that_another_run_took_gives_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    close = VideoWriter.close

    def taken(writer: VideoWriter) -> Path:
        (tmp_path / "clip.mp4").write_text("of another run")
        return close(writer)

    monkeypatch.setattr(VideoWriter, "close", taken)
    monkeypatch.chdir(tmp_path)
    assert call("run --model demo -p x --steps 1 --out clip.mp4 --report clip.json".split()) == 0
    out, err = capfd.readouterr()
    assert out == "clip-2.mp4\n" and "warning: clip.mp4 was made by another run" in err
    assert (tmp_path / "clip.mp4").read_text() == "of another run"
    report = json.loads((tmp_path / "clip.json").read_text())
    assert report["output"] == "clip-2.mp4" and len(report["warnings"]) == 1


def test_a_lost_rank_of_a_joined_job_is_reported_once(tmp_path: Path) -> None:
    """Two torchrun ranks, of which one raises while the other waits for it."""
    program = (
        "import os\n"
        "def fail(*_, **__): raise ValueError('it gave up')\n"
        "import hybridgen.distributed.joined as j; j.GRACE = 8  # a busy machine lets the cause speak late\n"
        "import hybridgen.engine.worker as w\n"
        "if os.environ['RANK'] == '1': w.fill = fail\n"
        "from hybridgen.cli.main import main; main()\n"
    )
    (tmp_path / "program.py").write_text(program)
    flags = "run --model demo -p x --ring 2 --steps 2 --out clip.mp4".split()
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "program.py"]
    done = subprocess.run([*launcher, *flags], cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert done.returncode == 1
    assert done.stderr.count("error[rank-lost]") == 1
    assert "rank 1 of 2" in done.stderr and "ValueError: it gave up" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]
