"""Reading a video through ffmpeg: its frames as stored, counted without decoding, and its last ones. No torch."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

Frame = NDArray[np.uint8]
"""One frame as an array [H, W, 3]."""

FORMATS = "mov,matroska,avi,mpegts,mpeg,flv,ogg,asf,ivf,yuv4mpegpipe,mxf,nut,dv,gif"
"""Containers that are read; ffmpeg would also draw a text file, or open what a playlist names."""
SECONDS = 60.0
"""The longest that ffmpeg may take to count frames, or to reach the last ones."""
COUNTED = 10_000
"""The most frames that are counted; a video with more has enough of them for any clip."""
SHORT = 256
"""Frames of a video that is decoded from its start."""
LONGEST = 1e6
"""Seconds of the longest end of a video that is decoded."""
STRICT = ("-xerror", "-err_detect", "crccheck+bitstream+buffer+careful+explode")
"""Words of ffmpeg that end decoding at damage, which it would paint over."""
NO_VIDEO = "cannot be read as a video"
UNFIT = {
    r"\b(smpte2084|arib-std-b67)\b": "is HDR, which would be read with wrong colours; convert it to SDR first",
    r"\bSAR (?!1:1\b)[1-9]\d*:": "has pixels that are not square; scale it to square ones first",
}
"""What ffmpeg says of streams whose frames, as they are stored, are not the pictures that players show."""
MARK = r"\b(top|bottom) (coded )?first\b"
"""What it says of streams that are marked as interlaced, as many are whose frames are not."""
INTERLACED = (
    "is interlaced, so each frame shows two moments; deinterlace it first: ffmpeg -i IN -vf bwdif=mode=send_frame OUT"
)
MARKED = "is marked as interlaced; its frames show no combs and are taken as they are"
LOOKED_AT, COMBED = 300, 0.05
"""Frames of such a video that are looked at, and the share of combed ones from which it is taken for interlaced."""
PAGE = 2**17
"""Bytes in which the last page of an Ogg file begins."""
PIXELS = 2**26
"""The most pixels of a frame."""


class Damaged(ValueError):
    """A video of which a frame cannot be decoded."""


class Length(NamedTuple):
    """Length of a video, or of its first COUNTED frames, from its container."""

    frames: int
    seconds: float
    doubt: str = ""
    """What is to be said of a video that is read all the same."""


def length_of(path: Path) -> Length:
    """Count the frames of a video without decoding.

    Raises ValueError for what is no video, is cut off, takes too long to read, or is UNFIT.
    """
    words = ["-map", "0:V:0", "-c", "copy", "-frames:v", str(COUNTED), "-f", "null", "-progress", "pipe:1", "-nostats"]
    try:
        command = _command(path, [], [*words, "-"], level="level+info")
        done = subprocess.run(command, check=False, capture_output=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise ValueError(f"cannot be read to its end within {SECONDS:g} s") from None
    said, told = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
    frames, micros = re.findall(r"^frame=(\d+)$", said, re.M), re.findall(r"^out_time_us=(\d+)$", said, re.M)
    if done.returncode or not frames or not int(frames[-1]):
        raise ValueError(NO_VIDEO)
    if _is_cut_off(path) or re.search(r"^(\[.* @ .*\] )?\[error\] .*(partial file|ended prematurely)", told, re.M):
        raise ValueError("is cut off: its end is missing")
    stream = "".join(re.findall(r"^\[info\] +(Stream #0:\d.*: Video: .*)$", told, re.M))
    for said_of_it, problem in UNFIT.items():
        if re.search(said_of_it, stream):
            raise ValueError(problem)
    marked = re.search(MARK, stream) is not None
    if marked and _is_combed(path):
        raise ValueError(INTERLACED)
    return Length(int(frames[-1]), int(micros[-1]) / 1e6 if micros else 0.0, MARKED if marked else "")


def _is_combed(path: Path) -> bool:
    """Whether frames show two moments each, as ffmpeg's idet finds them. Raises ValueError if it takes too long."""
    words = ["-map", "0:V:0", "-frames:v", str(LOOKED_AT), "-vf", "idet", "-f", "null", "-"]
    try:
        command = _command(path, [], words, level="level+info")
        done = subprocess.run(command, check=False, capture_output=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise ValueError(f"takes more than {SECONDS:g} s to decode") from None
    found = re.findall(r"Multi frame detection: TFF: *(\d+) BFF: *(\d+) Progressive: *(\d+)", done.stderr.decode())
    top, bottom, progressive = map(int, found[-1]) if found else (0, 0, 0)
    return top + bottom > COMBED * (top + bottom + progressive)


def last_frames(path: Path, keep: int) -> tuple[list[Frame], int, str]:
    """The last `keep` frames of a video, fewer if it has fewer; how many it has, or COUNTED; and what to warn of.

    Of a long video only the end is decoded. Raises ValueError as length_of() does, and where nothing can be decoded.
    """
    length = length_of(path)
    # At the start of a window a decoder may lack what came before: errors there only lead to the whole video.
    if length.frames > max(SHORT, 2 * keep) and length.seconds:
        window = 1.0 + 2 * keep * length.seconds / length.frames
        while window < length.seconds or (length.frames == COUNTED and window < LONGEST):
            try:
                frames = deque(frames_of(path, ["-sseof", f"-{window:.3f}"]), maxlen=keep)
            except Damaged:
                break
            if len(frames) == keep:
                return list(frames), length.frames, length.doubt
            window *= 4
    frames, count = deque[Frame](maxlen=keep), 0
    for frame in frames_of(path):
        frames.append(frame)
        count += 1
    if not count:
        raise ValueError(NO_VIDEO)
    return list(frames), count, length.doubt


def frames_of(path: Path, seek: Sequence[str] = ()) -> Iterator[Frame]:
    """The frames of a video one by one, as stored, whatever their times.

    Raises ValueError where they take too long, and Damaged at the end where one cannot be decoded.
    """
    output = ["-map", "0:V:0", "-fps_mode", "passthrough", "-f", "image2pipe", "-c:v", "ppm", "-pix_fmt", "rgb24", "-"]
    with TemporaryFile() as told:
        process = subprocess.Popen(_command(path, [*STRICT, *seek], output), stdout=subprocess.PIPE, stderr=told)
        timer = threading.Timer(SECONDS, process.kill)
        timer.start()
        count = 0
        try:
            assert process.stdout is not None
            while (frame := _next(process.stdout)) is not None:
                count += 1
                yield frame
            code = process.wait()
        finally:
            timer.cancel()
            process.kill()
            process.communicate()
        if code == -signal.SIGKILL:
            raise ValueError(f"takes more than {SECONDS:g} s to decode")
        if code or told.tell():
            where = f"at frame {count + 1} or soon after it" if code else "in some of its frames"
            raise Damaged(f"is damaged {where}")


def read_frames(path: Path) -> Frame:
    """All frames of a video, [T, H, W, 3] uint8."""
    return np.stack(list(frames_of(path)))


def _is_cut_off(path: Path) -> bool:
    """Whether an AVI file is shorter than it says, or an Ogg file has no last page; ffmpeg does not look at either."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(12)
        if start[:4] == b"RIFF":
            length = int.from_bytes(start[4:8], "little")
            return 0 < length < 2**32 - 1 and size < length + 8  # a stream does not know its length
        if start[:4] == b"OggS":
            file.seek(max(size - PAGE, 0))
            page = b"OggS" + file.read().rpartition(b"OggS")[2]
            parts = page[27 : 27 + page[26]] if len(page) > 27 else b""
            return not parts or not page[5] & 4 or len(page) < 27 + len(parts) + sum(parts)
    return False


def _command(path: Path, seek: Sequence[str], output: Sequence[str], level: str = "error") -> list[str]:
    import imageio_ffmpeg

    quiet = [
        "-nostdin",
        "-hide_banner",
        "-loglevel",
        level,
        "-format_whitelist",
        FORMATS,
        "-protocol_whitelist",
        "file,pipe",
    ]
    # Absolute, since ffmpeg would read "a:b.mp4" as a protocol.
    return [imageio_ffmpeg.get_ffmpeg_exe(), *quiet, *seek, "-i", f"file:{path.absolute()}", *output]


def _next(stream: IO[bytes]) -> Frame | None:
    """The next picture of a stream of PPM files; None at its end."""
    if stream.readline() != b"P6\n":
        return None
    width, height = map(int, stream.readline().split())
    if width * height > PIXELS:
        raise ValueError(f"has more than {PIXELS // 10**6} million pixels a frame ({width}x{height})")
    stream.readline()  # 255
    pixels = stream.read(width * height * 3)
    return None if len(pixels) < width * height * 3 else np.frombuffer(pixels, np.uint8).reshape(height, width, 3)
