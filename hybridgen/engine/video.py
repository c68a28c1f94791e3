"""Writing frames as mp4 through ffmpeg while the next are decoded, or one as PNG; their tags; contact sheets."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybridgen.distributed.files import part_of, take_free_name
from hybridgen.distributed.signals import die_with_parent
from hybridgen.engine.outputs import tags_of

Frames = NDArray[np.uint8]
"""Frames of a clip as an array [t, H, W, 3]."""
BT709 = (
    "scale=out_color_matrix=bt709:out_range=tv:flags=accurate_rnd+full_chroma_int,"
    "setparams=range=tv:color_primaries=bt709:color_trc=bt709:colorspace=bt709"
)
"""Colours of a video, converted and tagged. Untagged, players guess by the height, and ffmpeg converts to BT.601."""
SHEET = 5, 2
"""Columns and rows of a contact sheet."""


class VideoWriter:
    """Writer of uint8 frames to `path`; the file appears under its name only when it is complete.

    A thread feeds ffmpeg, so add() returns at once. Tags: title, description and comment survive copying; the same
    frames and tags give the same bytes.
    """

    def __init__(
        self, path: Path, part: Path, size: tuple[int, int], fps: float, tags: dict[str, str], overwrite: bool = False
    ) -> None:
        """Start ffmpeg. part: path of the unfinished file; size: width and height in pixels."""
        import imageio_ffmpeg

        width, height = size
        # Absolute, since ffmpeg would read "a:b.mp4" as a protocol.
        self.path, self.part, self.overwrite = path, part.absolute(), overwrite
        self.tags_file = tags_of(self.part)
        with _named_in_errors(path):
            self.tags_file.write_text(ffmetadata(tags), encoding="utf-8")
        command = [
            *(imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-loglevel", "error"),
            *("-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{fps:g}", "-i", "-"),
            *("-f", "ffmetadata", "-i", str(self.tags_file), "-map", "0:v", "-map_metadata", "1"),
            *("-vf", BT709, "-c:v", "libx264", "-crf", "16", "-pix_fmt", "yuv420p"),
            *("-movflags", "+faststart", "-bitexact"),
            *("-f", "mp4", str(self.part)),
        ]
        self.ffmpeg = subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=partial(die_with_parent, os.getpid())
        )
        self.queue: queue.Queue[Frames | None] = queue.Queue(maxsize=4)
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._feed, daemon=True)
        self.thread.start()

    def _feed(self) -> None:
        assert self.ffmpeg.stdin is not None
        while (frames := self.queue.get()) is not None:
            try:
                if self.error is None:
                    self.ffmpeg.stdin.write(frames.tobytes())
            except Exception as error:  # noqa: BLE001 - close() raises for it; the queue must be emptied
                self.error = error

    def add(self, frames: Frames) -> None:
        """Add frames [t, H, W, 3], uint8."""
        self.queue.put(frames)

    def close(self) -> Path:
        """Finish the file and give it its name, or the next that is free; returns it.

        Raises RuntimeError with ffmpeg's words, OSError where the folder fails.
        """
        self.queue.put(None)
        self.thread.join()
        _, words = self.ffmpeg.communicate()
        self.tags_file.unlink(missing_ok=True)
        if self.ffmpeg.returncode or self.error:
            self.part.unlink(missing_ok=True)
            said = words.decode(errors="replace").strip() or str(self.error or f"exit code {self.ffmpeg.returncode}")
            raise RuntimeError(f"ffmpeg could not write {self.path}: {said}")
        return _named(self.part, self.path, self.overwrite)


class PictureWriter:
    """Writer of one uint8 frame as a PNG; tags become text entries, and the file appears only when complete."""

    def __init__(self, path: Path, part: Path, tags: dict[str, str], overwrite: bool = False) -> None:
        self.path, self.part, self.tags, self.overwrite = path, part, tags, overwrite
        self.frames: list[Frames] = []

    def add(self, frames: Frames) -> None:
        """Add the one frame [1, H, W, 3], uint8."""
        self.frames.append(frames)

    def close(self) -> Path:
        """Write the file and give it its name, or the next that is free; returns it."""
        from PIL import Image, PngImagePlugin

        (frame,) = np.concatenate(self.frames)
        info = PngImagePlugin.PngInfo()
        for key, value in self.tags.items():
            info.add_itxt(key.capitalize(), value)
        with _named_in_errors(self.path):
            Image.fromarray(frame).save(self.part, "png", pnginfo=info)
        return _named(self.part, self.path, self.overwrite)


def _named(part: Path, path: Path, overwrite: bool) -> Path:
    """Give a finished file its name, or the next that is free."""
    with _named_in_errors(path):
        return take_free_name(part, path, overwrite)


@contextmanager
def _named_in_errors(path: Path) -> Iterator[None]:
    """A block whose OSError names the file that the user knows, and not its unfinished form."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def ffmetadata(tags: dict[str, str]) -> str:
    """Tags in ffmpeg's metadata file format; they go through a file since command lines are short and public."""

    def escape(text: str) -> str:
        for character in "\\=;#\n":
            text = text.replace(character, f"\\{character}")
        return text

    return ";FFMETADATA1\n" + "".join(f"{key}={escape(value)}\n" for key, value in tags.items())


SECONDS = 20
"""Seconds that ffmpeg may take to read the tags of a file."""


def read_tags(path: Path) -> dict[str, Any]:
    """The JSON in the comment of a video or a PNG; {} when there is none."""
    if path.suffix.lower() == ".png":
        from PIL import Image

        with Image.open(path) as picture:
            said = json.loads(picture.info.get("Comment", "{}"))
        assert isinstance(said, dict)
        return said
    import imageio_ffmpeg

    read = ["-loglevel", "error", "-protocol_whitelist", "file", "-f", "mov", "-i", str(path.absolute())]
    command = [imageio_ffmpeg.get_ffmpeg_exe(), *read, "-f", "ffmetadata", "pipe:1"]
    text = subprocess.run(command, capture_output=True, check=True, timeout=SECONDS).stdout.decode()
    for line in text.replace("\\\n", "\n").splitlines():
        key, _, value = line.partition("=")
        if key == "comment":
            plain = value.replace("\\\\", "\0")
            for character in "=;#":
                plain = plain.replace(f"\\{character}", character)
            found = json.loads(plain.replace("\0", "\\"))
            assert isinstance(found, dict)
            return found
    return {}


def contact_sheet(frames: Frames, path: Path, owner: object, overwrite: bool = False) -> Path:
    """Frames spread evenly over the clip, first and last included, side by side in one PNG; returns its path.

    `owner` names the unfinished file. Where the name is taken, the next free one is.
    """
    from PIL import Image

    count = min(len(frames), SHEET[0] * SHEET[1])
    picks = [frames[round(i * (len(frames) - 1) / max(count - 1, 1))] for i in range(count)]
    columns = min(SHEET[0], count)
    height, width, gap = *frames.shape[1:3], 2
    lines = -(-count // columns)
    sheet = np.full((lines * (height + gap) - gap, columns * (width + gap) - gap, 3), 255, np.uint8)
    for i, pick in enumerate(picks):
        y, x = (i // columns) * (height + gap), (i % columns) * (width + gap)
        sheet[y : y + height, x : x + width] = pick
    part = part_of(path, owner)
    with _named_in_errors(path):
        Image.fromarray(sheet).save(part, "png")
    return _named(part, path, overwrite)
