"""Images and videos of every kind are read rightly, or refused with what is wrong. No torch."""

from __future__ import annotations

import os
import subprocess
import zlib
from pathlib import Path

import numpy as np
import pytest
from imageio_ffmpeg import get_ffmpeg_exe
from PIL import Image, ImageCms

from hybridgen.engine import read_video
from hybridgen.engine.inputs import open_image, regular_file
from hybridgen.engine.read_video import frames_of, last_frames, length_of, read_frames
from hybridgen.errors import RequestError

RAMP = np.tile(np.linspace(0, 65535, 48).astype(np.uint16), (32, 1))
"""16-bit grey from black to white, [32, 48]."""


def opened(path: Path) -> np.ndarray:
    return np.asarray(open_image("image", str(path))[1]).astype(int)


@pytest.mark.parametrize("kind", ["I;16.png", "I;16.tiff", "I;16B.tiff", "16.pgm"])
def test_sixteen_bits_are_scaled(kind: str, tmp_path: Path) -> None:
    mode, _, ending = kind.rpartition(".")
    path = tmp_path / f"a.{ending}"
    if mode == "16":
        path.write_bytes(b"P5 48 32 65535\n" + RAMP.astype(">u2").tobytes())
    elif mode == "I;16B":
        Image.frombytes("I;16B", (48, 32), RAMP.astype(">u2").tobytes()).save(path)
    else:
        Image.fromarray(RAMP).convert(mode).save(path)
    expected = np.round(RAMP / 257)[:, :, None].repeat(3, 2)
    assert np.abs(opened(path) - expected).max() <= 1


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA", "CMYK", "YCbCr"])
def test_eight_bits_are_read_as_pillow_does(mode: str, tmp_path: Path) -> None:
    path = tmp_path / ("a.tiff" if mode in ("CMYK", "YCbCr") else "a.png")
    Image.fromarray((RAMP // 257).astype(np.uint8)).convert("RGB").convert(mode).save(path)
    assert np.array_equal(opened(path), np.asarray(Image.open(path).convert("RGB")))


def test_a_colour_profile_is_applied(tmp_path: Path) -> None:
    """Lab numbers read as RGB would be another picture; sRGB's own profile changes nothing."""
    picture = Image.new("RGB", (8, 8), (200, 60, 40))
    picture.save(tmp_path / "a.png", icc_profile=ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    assert (opened(tmp_path / "a.png") == (200, 60, 40)).all()
    picture.save(tmp_path / "b.png", icc_profile=wide())
    red, green, blue = opened(tmp_path / "b.png")[0, 0]
    assert red > 205 and green < 60 and blue < 60
    picture.save(tmp_path / "c.png", icc_profile=b"damaged")
    assert (opened(tmp_path / "c.png") == (200, 60, 40)).all()


SRGB, WIDE = "sRGB".encode("utf-16-be"), "wide".encode("utf-16-be")
"""The beginning of a profile's description."""


def wide() -> bytes:
    """A profile with red further out than that of sRGB: sRGB's own with red and green pulled apart."""
    data = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes().replace(SRGB, WIDE))
    at = {bytes(data[i : i + 4]): int.from_bytes(data[i + 4 : i + 8], "big") for i in range(132, 132 + 12 * 20, 12)}
    for tag, xyz in (
        (b"rXYZ", (0.515, 0.241, -0.001)),
        (b"gXYZ", (0.292, 0.692, 0.042)),
        (b"bXYZ", (0.157, 0.067, 0.784)),
    ):
        for axis, value in enumerate(xyz):
            data[at[tag] + 8 + 4 * axis : at[tag] + 12 + 4 * axis] = round(value * 65536).to_bytes(
                4, "big", signed=True
            )
    return bytes(data)


def transparent(mode: str) -> Image.Image:
    picture = Image.new("RGBA", (32, 32), (200, 60, 40, 255))
    picture.putpixel((3, 3), (0, 0, 0, 0))
    return picture.quantize(16) if mode == "P" else picture.convert(mode)


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("RGBA.png", "is transparent in parts"),
        ("LA.png", "is transparent in parts"),
        ("P.png", "is transparent in parts"),
        ("I.tiff", "32-bit values"),
        ("F.tiff", "32-bit values"),
        ("animation.gif", "is an animation of 3 frames"),
        ("large.png", "has more than 67 million pixels"),
        ("bomb.png", "has more than 67 million pixels"),
        ("text.png", "cannot be read as an image"),
    ],
)
def test_an_image_that_cannot_be_right_is_refused(kind: str, problem: str, tmp_path: Path) -> None:
    path, mode = tmp_path / kind, kind.partition(".")[0]
    if mode in ("RGBA", "LA", "P"):
        transparent(mode).save(path)
    elif mode in ("I", "F"):
        Image.new(mode, (32, 32)).save(path)
    elif mode == "animation":
        one, *more = (Image.new("L", (8, 8), 80 * i) for i in range(3))
        one.save(path, save_all=True, append_images=more)
    elif mode == "text":
        path.write_text("text")
    else:
        header = Image.new("1", (8, 8))
        header.save(path)
        data, side = bytearray(path.read_bytes()), 9000 if mode == "large" else 20000
        data[16:24] = side.to_bytes(4, "big") * 2
        data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
        path.write_bytes(data)
    with pytest.raises(RequestError) as refusal:
        open_image("image", str(path))
    assert refusal.value.rule == "image" and problem in refusal.value.message


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    for name, problem in {
        "pipe.png": "is not a regular file",
        ".": "is a folder",
        "none.png": "there is no such file",
        "x" * 300: "there is no such file",
        "pipe.png/x": "there is no such file",
    }.items():
        with pytest.raises(RequestError, match=problem):
            regular_file("image", "image", str(tmp_path / name))
    with pytest.raises(RequestError, match="there is no such file"):
        regular_file("image", "image", "~nobody-of-this-name/a.png")


def encode(path: Path, frames: np.ndarray, *words: str) -> Path:
    height, width = frames.shape[1:3]
    raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", "16", "-i", "-"]
    command = [get_ffmpeg_exe(), "-loglevel", "error", *raw, *words, str(path)]
    subprocess.run(command, input=frames.tobytes(), check=True)
    return path


def test_frames_are_those_that_are_stored_whatever_their_times(tmp_path: Path) -> None:
    """20 frames at 16 per second, then 20 at 4."""
    frames = np.broadcast_to((np.arange(40, dtype=np.uint8) * 6)[:, None, None, None], (40, 32, 32, 3))
    slower = ["-vf", "setpts='if(lt(N,20),N/16,20/16+(N-20)/4)/TB'", "-fps_mode", "passthrough", "-c:v", "ffv1"]
    path = encode(tmp_path / "a.mkv", np.ascontiguousarray(frames), *slower)
    found, count, _ = last_frames(path, 5)
    assert count == length_of(path).frames == 40
    assert [round(float(frame.mean())) for frame in found] == [210, 216, 222, 228, 234]


def test_the_end_of_a_long_video_is_read_without_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (600, 16, 16, 3), dtype=np.uint8)
    path = encode(tmp_path / "a.mp4", noise, "-c:v", "libx264", "-g", "50", "-pix_fmt", "yuv420p")
    whole = read_frames(path)
    seen = []
    real = subprocess.Popen

    def popen(command: list[str], **words: object) -> object:
        seen.append(command)
        return real(command, **words)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "Popen", popen)
    found, count, _ = last_frames(path, 5)
    assert count == len(whole) == 600 and np.array_equal(np.stack(found), whole[-5:])
    assert [c for c in seen if "image2pipe" in c and "-sseof" not in c] == []


@pytest.mark.parametrize("name", ["a.txt", "a.mp4", "list.m3u8", "empty.mp4"])
def test_what_is_no_video_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("" if name == "empty.mp4" else "#EXTM3U\nhello world\n" * 50)
    with pytest.raises(ValueError, match="cannot be read as a video"):
        last_frames(path, 5)


NOISE = np.random.default_rng(0).integers(0, 255, (40, 32, 32, 3), dtype=np.uint8)
ENCODED = {
    "a.mp4": ["-c:v", "libx264", "-movflags", "+faststart"],
    "a.mkv": ["-c:v", "libx264"],
    "a.avi": ["-c:v", "mpeg4"],
    "b.avi": ["-c:v", "rawvideo"],
    "a.ogg": ["-c:v", "libtheora"],
}


@pytest.mark.parametrize("part", [0.5, 0.99])
@pytest.mark.parametrize("name", ENCODED)
def test_a_video_that_is_cut_off_is_refused(name: str, part: float, tmp_path: Path) -> None:
    path = encode(tmp_path / name, NOISE, *ENCODED[name])
    assert last_frames(path, 5)[1] == 40
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])
    with pytest.raises(ValueError, match="is cut off|is damaged at frame"):
        last_frames(path, 5)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a.mp4", ENCODED["a.mp4"]),
        ("a.avi", ["-c:v", "mpeg4"]),
        ("a.ts", ["-c:v", "mpeg2video"]),
        ("a.mkv", ["-c:v", "ffv1"]),
    ],
)
def test_damage_inside_a_video_is_told(name: str, words: list[str], tmp_path: Path) -> None:
    """Also where the damage is in the end alone that is decoded of a long video."""
    for frames, start in ((NOISE, 0.5), (np.tile(NOISE, (16, 1, 1, 1)), 0.975)):
        path = encode(tmp_path / f"{len(frames)}{name}", frames, *words, "-g", "20")
        assert last_frames(path, 5)[1] == len(frames)
        content = bytearray(path.read_bytes())
        at = int(len(content) * start)
        content[at : at + 3000] = bytes(byte ^ 0x5A for byte in content[at : at + 3000])
        path.write_bytes(content)
        with pytest.raises(ValueError, match="is damaged (at frame [0-9]+ or soon after it|in some of its frames)"):
            last_frames(path, 5)


@pytest.mark.parametrize(
    ("filter", "says"),
    [
        ("setparams=color_trc=smpte2084", "is HDR"),
        ("setparams=color_trc=arib-std-b67", "is HDR"),
        ("setsar=8/9", "pixels that are not square"),
        ("setparams=color_trc=bt709,setsar=1", ""),
    ],
)
def test_frames_that_players_show_otherwise_are_refused(filter: str, says: str, tmp_path: Path) -> None:
    """What the pictures are counts, not what the tags say."""
    words = ["-vf", filter, "-c:v", "libx264"]
    tags = ["-metadata", "title=[error] partial file", "-metadata", "comment=Stream #0:0: Video: smpte2084"]
    path = encode(tmp_path / "a.mp4", NOISE, *words, *tags)
    if says:
        with pytest.raises(ValueError, match=says):
            last_frames(path, 5)
    else:
        assert last_frames(path, 5)[1] == 40


def moving(fields: bool) -> np.ndarray:
    """Waves that move; with `fields` every second line is half a frame later."""
    y, x, t = np.mgrid[0:64, 0:64, 0:40]
    t = t + (0.5 * (y % 2) if fields else 0.0)
    waves = (128 + 100 * np.sin((x - 3 * t) / 5) * np.cos(y / 9)).astype(np.uint8)
    return np.repeat(np.moveaxis(waves, 2, 0)[..., None], 3, -1)


@pytest.mark.parametrize("field", ["tff", "bff"])
def test_a_video_that_is_only_marked_as_interlaced_is_read(field: str, tmp_path: Path) -> None:
    words = ["-vf", f"setfield={field}", "-flags", "+ildct+ilme", "-c:v", "libx264"]
    with pytest.raises(ValueError, match="is interlaced, .* bwdif"):
        length_of(encode(tmp_path / "fields.mp4", moving(True), *words))
    plain = length_of(encode(tmp_path / "plain.mp4", moving(False), *words))
    assert plain.doubt.startswith("is marked as interlaced; its frames show no combs")
    assert not length_of(encode(tmp_path / "unmarked.mp4", moving(False), "-c:v", "libx264")).doubt


def test_a_video_whose_end_is_far_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = encode(tmp_path / "a.mkv", np.zeros((40, 16, 16, 3), np.uint8), "-c:v", "ffv1")
    monkeypatch.setattr(read_video, "SECONDS", 0.0)
    for read in (length_of, lambda path: list(frames_of(path))):
        with pytest.raises(ValueError, match="0 s"):
            read(path)
