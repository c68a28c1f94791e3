"""Given pictures: any file that diffusers reads, and requests that cannot be served are refused by name."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers.utils import load_image
from diffusers.video_processor import VideoProcessor
from PIL import Image
from torch import Tensor

from hybridgen.api import spine
from hybridgen.distributed.processes import RankContext
from hybridgen.engine.inputs import check_inputs, open_image, open_inputs
from hybridgen.engine.options import RunOptions
from hybridgen.engine.outputs import Outputs
from hybridgen.engine.prepare import make_job
from hybridgen.engine.rank import set_up
from hybridgen.engine.worker import ready
from hybridgen.errors import RequestError
from hybridgen.models.wan.image import WanPictures
from hybridgen.plan.traffic import SETUP, by_strategy
from hybridgen.recipe.clip import clip_of
from hybridgen.recipe.fields import Recipe, Request
from hybridgen.strategies import registry
from hybridgen.strategies.registry import Degrees
from tests.support.checkpoints import Case, job_of
from tests.support.ranks import run_ranks
from tests.support.stock import picture

SIDEWAYS = 6
"""EXIF's orientation of a picture to be turned by a quarter, clockwise."""


def png(path: Path, mode: str) -> Path:
    picture(1, 96, 40).convert(mode).save(path)
    return path


def jpeg(path: Path) -> Path:
    turned = Image.Exif()
    turned[0x0112] = SIDEWAYS
    picture(1, 96, 40).save(path, exif=turned, quality=95)
    return path


def frames(path: Path, case: Case = Case("wan2.1-i2v")) -> Tensor:
    """What the autoencoder is given, [1, 3, F, H, W]."""
    plan = replace(case.plan(), clip=replace(case.plan().clip, image=True, encoded_frames=case.frames))
    _, picture = open_image("image", str(path))
    return WanPictures.frames_to_encode(SimpleNamespace(plan=plan), [picture])  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["RGB", "RGBA", "L", "P", "jpeg"])
def test_a_picture_is_read_and_scaled_as_diffusers_does(kind: str, tmp_path: Path) -> None:
    path = jpeg(tmp_path / "a.jpg") if kind == "jpeg" else png(tmp_path / "a.png", kind)
    found = frames(path)
    processor: Any = VideoProcessor(vae_scale_factor=8)
    assert torch.equal(found[:, :, 0], processor.preprocess(load_image(str(path)), height=64, width=64))
    assert found.shape == (1, 3, 17, 64, 64) and not found[:, :, 1:].any()


def test_a_turned_photograph_stands_upright(tmp_path: Path) -> None:
    upright = Image.open(jpeg(tmp_path / "a.jpg")).transpose(Image.Transpose.ROTATE_270)
    upright.save(tmp_path / "b.png")
    assert torch.equal(frames(tmp_path / "a.jpg"), frames(tmp_path / "b.png"))


def test_a_file_that_is_cut_off_or_damaged_is_refused(tmp_path: Path) -> None:
    whole = png(tmp_path / "a.png", "RGB").read_bytes()
    damaged = bytearray(whole)
    damaged[40] ^= 0xFF
    for content in (whole[: len(whole) // 2], bytes(damaged), b"no picture"):
        (tmp_path / "b.png").write_bytes(content)
        with pytest.raises(RequestError) as error:
            open_image("image", str(tmp_path / "b.png"))
        assert error.value.rule == "image"


def refusal(kind: str, **request: Any) -> RequestError:
    """What is said to a request, from plan to job."""
    case = Case(kind)
    facts = case.plan().facts
    with pytest.raises(RequestError) as error:
        asked = Request(prompt="a", size="64x64", **{"frames": 17, **request})
        clip = clip_of(asked, facts, open_inputs(asked, facts).video_frames)
        check_inputs(asked, facts, clip)
    return error.value


def test_what_a_checkpoint_does_with_pictures(tmp_path: Path) -> None:
    given = str(png(tmp_path / "a.png", "RGB"))
    unused = refusal("wan2.1-t2v", image=given)
    assert unused.rule == "image-unused" and "wan2.2-i2v-a14b" in str(unused) and "cosmos" not in str(unused)
    assert refusal("wan2.1-i2v").rule == "image-missing"
    assert refusal("wan2.1-i2v", image=given, last_image=given).rule == "last-image-unused"
    assert refusal("wan2.1-flf2v", last_image=given).rule == "image-missing"
    missing = refusal("wan2.1-flf2v", image=given)
    assert missing.rule == "image-missing" and "--last-image" in str(missing)
    assert refusal("wan2.2-i2v", image=given, last_image=given, frames=1).rule == "last-image-unused"
    assert refusal("wan2.2-ti2v", image=given, last_image=given).rule == "last-image-unused"
    assert refusal("wan2.2-ti2v", image=str(tmp_path / "none.png")).rule == "image"
    for pictures in {}, {"image": given}, {"image": given, "last_image": given}:
        assert refusal("wan2.1-flf2v", frames=1, **pictures).tries == ({"frames": "5"},)


def test_only_rank_0_of_a_joined_job_needs_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("wan2.1-i2v", 1)
    options = RunOptions(out=tmp_path / "clip.mp4", quiet=True)
    fields = {"model": str(case.folder), "prompt": "a", "image": str(tmp_path / "on-another-machine.png"), "cfg": 2}
    monkeypatch.setattr("hybridgen.engine.launch.launch", lambda job, *_: job.report({}, [], [], ""))
    for rank, needed in (("1", False), ("0", True)):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "2")
        with pytest.raises(RequestError, match="there is no such file") if needed else nullcontext():
            report = spine.run(options, {**fields, "size": "64x64", "frames": 17, "device": "cpu"})
            assert report is not None and report.request.image is None


@pytest.mark.parametrize(
    ("kind", "image", "last_image", "encodes", "tokens", "token_time"),
    [
        ("wan2.1-t2v", "", "", "", 0, False),
        ("wan2.1-i2v", "must", "", "all", 17, False),
        ("wan2.1-flf2v", "must", "must", "all", 17, False),
        ("wan2.2-i2v", "must", "may", "all", 0, False),
        ("wan2.2-ti2v", "may", "", "first", 0, True),
    ],
)
def test_facts_of_a_folder(kind: str, image: str, last_image: str, encodes: str, tokens: int, token_time: bool) -> None:
    facts = Case(kind).plan().facts
    assert (facts.image, facts.last_image, facts.encodes, facts.image_tokens) == (image, last_image, encodes, tokens)
    assert facts.transformer.token_time == token_time
    assert bool(facts.image_params) == bool(facts.transformer.image_dim) == bool(tokens)


@pytest.mark.parametrize(("kind", "images"), [("wan2.1-flf2v", 2), ("wan2.2-i2v", 1), ("wan2.2-ti2v", 1)])
def test_what_rank_0_sends_before_denoising_is_declared(kind: str, images: int) -> None:
    case = Case(kind, images)
    plan = case.plan(Degrees(ulysses=2))

    def run_here(context: RankContext) -> int:
        rank = set_up(context, job_of(case, plan))
        ready(rank)
        return rank.mesh.traffic.sent[SETUP]

    sent = run_ranks(2, run_here, group=False)
    assert sent == [by_strategy(registry.traffic(plan, rank)).get(SETUP, 0) for rank in (0, 1)]


def test_what_a_clip_starts_from_is_not_overwritten(tmp_path: Path) -> None:
    """Not even when asked to replace files, and by whatever name."""
    path = png(tmp_path / "a.png", "RGB")
    (tmp_path / "b.png").symlink_to(path)
    case = Case("wan2.1-i2v", images=1)
    request = Request(prompt="x", image=str(path), size="64x64", frames=17, seed=1)
    inputs = open_inputs(request, case.facts())
    outputs = Outputs(tmp_path / "a.mp4", preview=tmp_path / "b.png", overwrite=True)
    with pytest.raises(RequestError) as refusal:
        make_job(Recipe(request=request), case.plan(), outputs, inputs)
    assert refusal.value.rule == "output-given"
