"""`hybridgen run` as its user runs it, on the demo model and CPU ranks."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from imageio_ffmpeg import get_ffmpeg_exe

from hybridgen.distributed.progress import Progress
from hybridgen.engine.outputs import Outputs
from hybridgen.engine.prepare import make_job
from hybridgen.engine.read_video import read_frames
from hybridgen.engine.video import VideoWriter, read_tags
from hybridgen.engine.worker import work
from hybridgen.models.catalogue import DEMO_FOLDER
from hybridgen.recipe.compose import compose
from hybridgen.recipe.resolve import resolve
from tests.support.ranks import run_ranks
from tests.support.runs import PROMPT, STEPS, assert_declared, error, files, hybridgen, latents, pixels, stock


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_rank_equals_the_stock_pipeline_bit_for_bit(dtype: str, tmp_path: Path) -> None:
    hybridgen(tmp_path, "--model", "demo", "--dtype", dtype, "--steps", "12", *files("clip"))
    assert torch.equal(latents(tmp_path / "clip.safetensors"), stock(DEMO_FOLDER, dtype, 12))


def test_a_wan_21_folder_runs_by_its_path(tmp_path: Path) -> None:
    """One expert, no boundary: the same files without the second transformer, split over two ranks."""
    folder = tmp_path / "wan21"
    folder.mkdir()
    for part in ("text_encoder", "tokenizer", "transformer", "vae", "scheduler"):
        (folder / part).symlink_to(DEMO_FOLDER / part)
    index = json.loads((DEMO_FOLDER / "model_index.json").read_text())
    index |= {"transformer_2": [None, None], "boundary_ratio": None}
    (folder / "model_index.json").write_text(json.dumps(index))
    size = ("--size", "64x64", "--frames", "17", "--guidance", "3", "--steps", "3", "--dtype", "float32")
    hybridgen(tmp_path, "--model", str(folder), "--ulysses", "2", *size, *files("clip"))
    assert error(latents(tmp_path / "clip.safetensors"), stock(folder, "float32", 3)) <= 1e-5


def test_the_report_says_what_happened(alone: Path, tmp_path: Path) -> None:
    words = ["--model", "demo", "--cfg", "2", "--ulysses", "2", "--vae", "2", "--steps", str(STEPS)]
    done = hybridgen(tmp_path, *words, *files("clip"))
    assert done.stdout == "clip.mp4\n"
    report = json.loads((tmp_path / "clip.json").read_text())
    assert report["plan"]["degrees"] == {
        "cfg": 2, "pipefusion": 1, "tp": 1, "ring": 1, "attn2d": [1, 1], "ulysses": 2, "vae": 2
    }  # fmt: skip
    assert report["plan"]["world_size"] == 4 and report["plan"]["exact"] is True
    assert report["request"]["prompt"] == PROMPT and report["seed"] == 1 and report["output"] == "clip.mp4"
    times = report["timings_s"]
    assert set(times) == {"load", "encode", "denoise", "steps", "decode", "write", "total"}
    assert len(times["steps"]) == STEPS and sum(times["steps"]) <= times["denoise"] <= times["total"]
    assert len(report["peak_memory_bytes"]) == 4 and min(report["peak_memory_bytes"]) > 1e6
    plan = resolve(compose(None, [], {"model": "demo", "cfg": 2, "ulysses": 2, "vae": 2, "steps": STEPS}))
    assert_declared(plan, report)
    assert error(latents(tmp_path / "clip.safetensors"), latents(alone / "clip.safetensors")) <= 1e-5
    assert np.abs(pixels(tmp_path / "clip.png") - pixels(alone / "clip.png")).max() <= 1
    assert (
        "ulysses 983 kB" in done.stderr
        and f"repeat  hybridgen run --model demo -p '{PROMPT}' --steps {STEPS} --seed 1" in done.stderr
    )


def test_the_published_72_rank_recipe_equals_one_rank(alone: Path, tmp_path: Path) -> None:
    words = f"--model demo --cfg 2 --ulysses 4 --attn2d 3x3 --vae 8 --steps {STEPS}".split()
    hybridgen(tmp_path, *words, *files("clip"))
    assert error(latents(tmp_path / "clip.safetensors"), latents(alone / "clip.safetensors")) <= 1e-5
    assert np.abs(pixels(tmp_path / "clip.png") - pixels(alone / "clip.png")).max() <= 1
    plan = resolve(
        compose(None, [], {"model": "demo", "cfg": 2, "ulysses": 4, "attn2d": "3x3", "vae": 8, "steps": STEPS})
    )
    assert_declared(plan, json.loads((tmp_path / "clip.json").read_text()))


def test_the_video_shows_what_was_decoded_and_says_how_it_was_made(alone: Path) -> None:
    frames = read_frames(alone / "clip.mp4")
    assert frames.shape == (17, 64, 64, 3)
    first = pixels(alone / "clip.png")[:64, :64]
    assert np.abs(frames[0].astype(int) - first).mean() < 6  # h264 at quality 16
    tags = read_tags(alone / "clip.mp4")
    report = json.loads((alone / "clip.json").read_text())
    assert tags["request"] == report["request"] and tags["latents_sha256"] == report["latents_sha256"]


def test_colours_of_a_video_are_bt709_and_say_so(tmp_path: Path) -> None:
    """What a player shows that reads the tags, and what the file holds: luma of BT.709 in the TV's range."""
    frames = np.broadcast_to(np.array([200, 60, 40], np.uint8), (4, 96, 160, 3))
    writer = VideoWriter(tmp_path / "a.mp4", tmp_path / "part", (160, 96), 8, {})
    writer.add(frames)
    writer.close()
    said = subprocess.run([get_ffmpeg_exe(), "-i", str(tmp_path / "a.mp4")], capture_output=True, text=True).stderr
    assert "yuv420p(tv, bt709, progressive)" in said  # matrix, primaries and transfer are the same
    assert np.abs(read_frames(tmp_path / "a.mp4").astype(int) - frames).max() <= 2
    raw = ["-f", "rawvideo", "-pix_fmt", "yuv420p", "-"]
    stored = subprocess.run([get_ffmpeg_exe(), "-i", str(tmp_path / "a.mp4"), *raw], capture_output=True).stdout
    luma = 16 + 219 / 255 * (0.2126 * 200 + 0.7152 * 60 + 0.0722 * 40)
    assert abs(stored[0] - luma) <= 1


def test_the_last_step_is_logged_also_right_after_another(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr("hybridgen.distributed.progress.time.monotonic", lambda: now)
    progress = Progress("lines")
    progress.start(20)
    for index in range(20):
        now += 1.5 if index == 18 else 0.05
        progress.step(0.05)
    assert [line.split()[2] for line in capsys.readouterr().err.splitlines()] == ["19/20", "20/20"]


def test_a_log_gets_lines_from_one_rank(tmp_path: Path) -> None:
    log = hybridgen(tmp_path, "--model", "demo", "--ring", "2", "--out", "clip.mp4").stderr
    assert "\r" not in log and "\x1b" not in log
    stages = [line.split()[0] for line in log.splitlines() if line.endswith(" s") and not line.startswith("load 0")]
    assert [s for s in stages if s in ("load", "encode", "denoise", "decode", "write")][:5] == [
        "load", "encode", "denoise", "decode", "write"
    ]  # fmt: skip
    assert "20/20" in log and "s/step" in log and "low-noise expert" in log


def test_quiet_prints_the_path_alone_and_names_the_file(tmp_path: Path) -> None:
    done = hybridgen(tmp_path, "--model", "demo", "--steps", "1", "-q")
    assert done.stdout == "a-red-circle-moves-right-s1.mp4\n" and done.stderr == ""
    assert [path.name for path in tmp_path.iterdir()] == ["a-red-circle-moves-right-s1.mp4"]


@pytest.mark.parametrize("words", ["--pipefusion 2 --warmup 4 --dtype bfloat16", "--ulysses 2 --vae 2"])
def test_a_scheduler_that_keeps_the_models_dtype(words: str, tmp_path: Path) -> None:
    """Flow-match Euler gives latents in the prediction's dtype."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    folder = tmp_path / "euler"
    folder.mkdir()
    for part in ("text_encoder", "tokenizer", "transformer", "transformer_2", "vae"):
        (folder / part).symlink_to(DEMO_FOLDER / part)
    FlowMatchEulerDiscreteScheduler(shift=3.0).save_pretrained(folder / "scheduler")
    index = json.loads((DEMO_FOLDER / "model_index.json").read_text())
    index["scheduler"] = ["diffusers", "FlowMatchEulerDiscreteScheduler"]
    (folder / "model_index.json").write_text(json.dumps(index))
    shared = f"--model {folder} --size 64x64 --frames 17 --guidance 3 --steps 4".split()
    dtype = ["--dtype", "bfloat16" if "bfloat16" in words else "float32"]
    hybridgen(tmp_path, *shared, *dtype, *files("one"))
    hybridgen(tmp_path, *shared, *dtype, *words.split(), *files("two"))
    one, two = latents(tmp_path / "one.safetensors"), latents(tmp_path / "two.safetensors")
    assert torch.equal(one, stock(folder, dtype[1], 4).float())
    assert error(two, one) <= (0.02 if "bfloat16" in words else 1e-5)


def test_a_scheduler_with_noise_of_its_own_is_refused(tmp_path: Path) -> None:
    from hybridgen.errors import RequestError
    from hybridgen.models.checkpoint import from_folder

    index = json.loads((DEMO_FOLDER / "model_index.json").read_text())
    index["scheduler"] = ["diffusers", "DDPMScheduler"]
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    with pytest.raises(RequestError, match="DDPMScheduler"):
        from_folder(tmp_path)


def test_files_of_others_survive_an_overwrite(tmp_path: Path) -> None:
    for name in ("c.mp4", "c.latents.safetensors"):
        (tmp_path / name).write_bytes(b"mine")
    hybridgen(tmp_path, "--model", "demo", "--steps", "2", "--out", "c.mp4", "--overwrite")
    assert (tmp_path / "c.latents.safetensors").read_bytes() == b"mine" != (tmp_path / "c.mp4").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.latents.safetensors", "c.mp4"]


def test_every_rank_gets_the_report_of_the_first(tmp_path: Path) -> None:
    """As in a job of torchrun, whose ranks all call generate()."""
    request = {"model": "demo", "prompt": PROMPT, "seed": 1, "steps": 1, "cfg": 2, "device": "cpu"}
    recipe = compose(None, [], request)
    job = make_job(recipe, resolve(recipe), Outputs(tmp_path / "clip.mp4"), quiet=True)
    first, other = run_ranks(2, lambda context: work(context, job), group=False)
    assert first == other and len(first.peak_memory_bytes) == 2 and first.latents_sha256 and first.output.exists()
