"""Reading a video through ffmpeg: its frames as stored, counted without decoding, and its last ones. No torch."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
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
PIXELS = 2**26
"""The most pixels of a frame."""


class Length(NamedTuple):
    """Length of a video, or of its first COUNTED frames, from its container."""

    frames: int
    seconds: float


def length_of(path: Path) -> Length:
    """Count the frames of a video without decoding. Raises ValueError: no video, or no end of it in time."""
    words = ["-map", "0:V:0", "-c", "copy", "-frames:v", str(COUNTED), "-f", "null", "-progress", "pipe:1", "-nostats"]
    try:
        done = subprocess.run(_command(path, [], [*words, "-"]), check=False, capture_output=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise ValueError(f"cannot be read to its end within {SECONDS:g} s") from None
    said = done.stdout.decode(errors="replace")
    frames, micros = re.findall(r"^frame=(\d+)$", said, re.M), re.findall(r"^out_time_us=(\d+)$", said, re.M)
    if done.returncode or not frames or not int(frames[-1]):
        raise ValueError("cannot be read as a video")
    if re.search(rb"partial file|ended prematurely", done.stderr):
        raise ValueError("is cut off: its end is missing")
    return Length(int(frames[-1]), int(micros[-1]) / 1e6 if micros else 0.0)


def last_frames(path: Path, keep: int) -> tuple[list[Frame], int]:
    """The last `keep` frames of a video, fewer if it has fewer, and how many it has, or COUNTED.

    Of a long video only the end is decoded. Raises ValueError as length_of() does, and where nothing can be decoded.
    """
    length = length_of(path)
    if length.frames > max(SHORT, 2 * keep) and length.seconds:
        window = 1.0 + 2 * keep * length.seconds / length.frames
        while window < length.seconds or (length.frames == COUNTED and window < LONGEST):
            frames = deque(frames_of(path, ["-sseof", f"-{window:.3f}"]), maxlen=keep)
            if len(frames) == keep:
                return list(frames), length.frames
            window *= 4
    frames, count = deque[Frame](maxlen=keep), 0
    for frame in frames_of(path):
        frames.append(frame)
        count += 1
    if not count:
        raise ValueError("cannot be read as a video")
    return list(frames), count


def frames_of(path: Path, seek: Sequence[str] = ()) -> Iterator[Frame]:
    """The frames of a video one by one, as stored, whatever their times. Raises ValueError where they take too long."""
    output = ["-map", "0:V:0", "-fps_mode", "passthrough", "-f", "image2pipe", "-c:v", "ppm", "-pix_fmt", "rgb24", "-"]
    process = subprocess.Popen(_command(path, seek, output), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    timer = threading.Timer(SECONDS, process.kill)
    timer.start()
    try:
        assert process.stdout is not None
        while (frame := _next(process.stdout)) is not None:
            yield frame
        late = process.wait() == -signal.SIGKILL
    finally:
        timer.cancel()
        process.kill()
        process.communicate()
    if late:
        raise ValueError(f"takes more than {SECONDS:g} s to decode")


def read_frames(path: Path) -> Frame:
    """All frames of a video, [T, H, W, 3] uint8."""
    return np.stack(list(frames_of(path)))


def _command(path: Path, seek: Sequence[str], output: Sequence[str]) -> list[str]:
    import imageio_ffmpeg

    quiet = ["-nostdin", "-loglevel", "error", "-format_whitelist", FORMATS, "-protocol_whitelist", "file,pipe"]
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
