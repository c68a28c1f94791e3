"""Kept latents become the clip that their run would have made."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from hybridgen.api import spine as api
from hybridgen.cli.main import call
from hybridgen.distributed.data import packed, unpacked
from hybridgen.engine.job import PARTS
from hybridgen.engine.kept import decode_job, read_kept
from hybridgen.engine.launch import launch
from hybridgen.engine.options import DecodeOptions
from hybridgen.engine.read_video import read_frames
from hybridgen.engine.video import Frames, VideoWriter, read_tags
from hybridgen.errors import RequestError, RunFailed
from tests.ranks.test_guardrail import Checker, checker
from tests.support.checkpoints import LAYERS, Case

assert checker  # a fixture

RUN = ["run", "--model", "demo", "-p", "a red circle moves right", "--steps", "2", "--frames", "9", "--seed", "3"]


def record(patch: pytest.MonkeyPatch, path: Path) -> None:
    """Have ranks put all pixels that they encode into a file: x264 makes much of a difference of 1 in a few."""
    add = VideoWriter.add

    def recorded(writer: VideoWriter, frames: Frames) -> None:
        with path.open("ab") as file:
            file.write(frames.tobytes())
        add(writer, frames)

    patch.setattr(VideoWriter, "add", recorded)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a clip, its pixels and its latents."""
    folder = tmp_path_factory.mktemp("kept")
    clip, latents = folder / "clip.mp4", folder / "clip.latents.safetensors"
    with pytest.MonkeyPatch.context() as patch:
        record(patch, folder / "pixels")
        assert call([*RUN, "--cfg", "2", "--out", str(clip), "--latents", str(latents)]) == 0
    return folder


@pytest.mark.parametrize("width", [1, 3])
def test_the_clip_is_the_same(
    width: int, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """To the byte and with its tags, and in strips but for rounding; under the name of the latents by default."""
    monkeypatch.chdir(tmp_path)
    Path("clip.mp4").touch()
    latents = kept / "clip.latents.safetensors"
    record(monkeypatch, tmp_path / "pixels")
    assert call(["decode", str(latents), "--vae", str(width), "--report", "clip.json", "--hang-timeout", "600"]) == 0
    assert capsys.readouterr().out == "clip-2.mp4\n"
    made, before = Path("clip-2.mp4"), kept / "clip.mp4"
    assert read_tags(made) == read_tags(before)
    assert width > 1 or made.read_bytes() == before.read_bytes()
    mine, theirs = (np.fromfile(folder / "pixels", np.uint8).astype(int) for folder in (tmp_path, kept))
    assert np.abs(mine - theirs).max() <= 1 and (mine != theirs).mean() < 0.01
    assert latents.exists()
    report = json.loads(Path("clip.json").read_text())
    assert report["output"] == "clip-2.mp4" and len(report["traffic_bytes"]) == width and report["timings_s"]["decode"]


def test_only_rank_0_of_a_joined_job_needs_the_file(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = decode_job(DecodeOptions(kept / "clip.latents.safetensors", tmp_path / "a.mp4", device="cpu"))
    assert unpacked(packed(made), like=PARTS) == made
    jobs: list[Any] = []
    monkeypatch.setattr("hybridgen.engine.launch.launch", lambda job, *_: jobs.append(job))
    options = DecodeOptions(tmp_path / "nowhere.safetensors", device="cpu")
    with pytest.raises(RequestError):
        api.decode(options)
    for name, value in {"RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    api.decode(options)
    assert jobs == [None]


def test_what_a_failed_run_has_kept_is_decoded(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("it gave up")

    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(VideoWriter, "add", fail)
        assert call([*RUN, "--cfg", "2", "--out", "clip.mp4"]) == 1
    assert "hybridgen decode clip.latents.safetensors makes the clip" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["clip.latents.safetensors"]
    assert call(["decode", "clip.latents.safetensors", "-o", "again.mp4"]) == 0
    assert Path("again.mp4").read_bytes() == (kept / "clip.mp4").read_bytes()


def test_a_checkpoint_in_a_folder_is_found_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    shutil.copytree(Case("wan2.1-t2v", changes=LAYERS).folder, tmp_path / "here" / "model")
    monkeypatch.chdir(tmp_path / "here")
    words = "--size 64x64 --frames 5 --steps 1 --dtype float32 --device cpu --latents a.safetensors --out a.mp4".split()
    assert call(["run", "--model", "./model", "-p", "x", *words]) == 0
    monkeypatch.chdir(tmp_path)
    assert read_kept("here/a.safetensors").model == str(tmp_path / "here" / "model")
    assert call("decode here/a.safetensors --device cpu".split()) == 0
    assert Path("a.mp4").read_bytes() == Path("here/a.mp4").read_bytes()


def damaged(kind: str, latents: Path, path: Path) -> Path:
    """A file that cannot be decoded."""
    data = latents.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    metadata = header["__metadata__"]
    record = json.loads(metadata["record"])
    if kind == "text":
        data = b"no latents"
    elif kind == "empty":
        data = b""
    elif kind == "cut":
        data = data[:-1]
    elif kind == "length":
        data = b"\xff" * 8 + data[8:]
    elif kind == "no record":
        save_file(load_file(latents), path)
        return path
    else:
        changes = {"key": {"other": 1}, "type": {"frames": "9"}, "size": {"size": "80x48"}}
        record["request"] |= changes.get(kind, {})
        kept = {key: value for key, value in metadata.items() if key != kind}
        save_file(load_file(latents), path, kept | {"record": json.dumps(record)})
        return path
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("kind", ["text", "empty", "cut", "length", "no record", "key", "type", "size", "model"])
def test_a_file_that_is_none_is_refused(kind: str, kept: Path, tmp_path: Path) -> None:
    path = damaged(kind, kept / "clip.latents.safetensors", tmp_path / "a.safetensors")
    with pytest.raises(RequestError) as refusal:
        decode_job(DecodeOptions(path, tmp_path / "a.mp4", device="cpu"))
    assert refusal.value.rule == "kept-latents"


def test_too_many_ranks_are_refused_by_the_flag_that_was_given(kept: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="--vae 9: is more than the 8 latent rows"):
        decode_job(DecodeOptions(kept / "clip.latents.safetensors", tmp_path / "a.mp4", vae=9, device="cpu"))


def test_numbers_that_have_changed_are_refused(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = bytearray((kept / "clip.latents.safetensors").read_bytes())
    data[-3] ^= 1
    (tmp_path / "a.safetensors").write_bytes(data)
    monkeypatch.chdir(tmp_path)
    assert call(["decode", "a.safetensors"]) == 1
    assert "error[kept-latents]" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]


def test_a_guarded_model_checks_the_frames(checker: type[Checker], kept: Path, tmp_path: Path) -> None:
    """Latents of another hand are decoded by a guarded model as its own are: nothing that is blocked is written."""
    folder = Case("cosmos2.5", changes=LAYERS).folder
    source = read_kept(str(kept / "clip.latents.safetensors"))
    record = source.record
    record["request"] |= {"size": "64x64", "frames": 5, "prompt": "a cat"}
    job_of = {"model": str(folder), "record": json.dumps(record)}
    latents = np.zeros((1, 16, 2, 8, 8), np.float32)
    save_file({"latents": latents}, tmp_path / "in.safetensors", job_of)
    options = DecodeOptions(tmp_path / "in.safetensors", tmp_path / "a.mp4", device="cpu", vae=2, quiet=True)
    checker.verdict = staticmethod(lambda frames: None)
    with pytest.raises(RunFailed, match="blocked the frames; nothing was written"):
        launch(decode_job(options), "fork")
    assert [path.name for path in tmp_path.iterdir()] == ["in.safetensors"]
    checker.verdict = staticmethod(lambda frames: frames)
    launch(decode_job(options), "fork")
    assert len(read_frames(tmp_path / "a.mp4")) == 5
