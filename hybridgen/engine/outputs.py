"""The files of a run: their names, and whether they can be written. No torch."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hybridgen.distributed.claims import claimed, is_busy
from hybridgen.distributed.files import check_folder, free_name, may_write
from hybridgen.engine.resume import STATE
from hybridgen.errors import RequestError

ENDINGS = {"out": (".mp4",), "latents": (".safetensors",), "report": (".json",), "preview": (".png",)}
PICTURE = (".png", ".mp4")
"""Endings of a clip of one frame: an image, unless a video is asked for by name."""

RULES = {
    "output-given": "A run reads the files that it starts from while it writes its own.",
    "report": "The report is written before anything is printed; the clip was complete by then.",
    "output-twice": "Two results in one file would leave only the second.",
}


LATENTS = ".latents.safetensors"
"""Ending of the final latents, which stand beside the clip until it is complete."""
PREVIEW = ".preview.png"
"""Ending of the picture that shows a clip while it is made."""
AUTO = -1
"""In place of a number of steps: as many as make keeping the state cost next to nothing."""


@dataclass(frozen=True)
class Outputs:
    """Files that a run may write; None means not asked for (the video then gets a name)."""

    video: Path | None = None
    latents: Path | None = None
    report: Path | None = None
    preview: Path | None = None
    overwrite: bool = False
    preview_every: int | None = None
    """Number of steps after which a frame is shown beside the video, again and again; None is never."""
    keep_every: int = 0
    """Number of steps after which the state is kept, again and again; 0 is never, AUTO as often as costs nothing."""
    resume: bool = False
    """Whether the clip goes on from the state that a run left, if there is one."""
    warning: int = 0
    """The signal after which the state is kept and the run ends; 0 is none."""


def endings(frames: int) -> tuple[str, ...]:
    """File endings for a clip of this many frames, the usual one first."""
    return PICTURE if frames == 1 else ENDINGS["out"]


def slug(prompt: str) -> str:
    """A prompt as part of a file name: at most 40 letters, digits and dashes."""
    found = re.sub(r"[^a-z0-9]+", "-", prompt.lower().encode("ascii", "ignore").decode()).strip("-")[:40].strip("-")
    return found or "clip"


def default_name(prompt: str, seed: int, ending: str = ".mp4") -> Path:
    """A file name from prompt and seed, with a counter if it is taken, or another run is about to take it."""
    return free_name(Path(f"{slug(prompt)}-s{seed}{ending}"), ending, is_busy)


@contextmanager
def owned(outputs: Outputs, video: Path) -> Iterator[None]:
    """A block in which this run alone writes these files, and what killed runs left of them is removed.

    Raises RequestError (output-busy).
    """
    files = dict(zip(ENDINGS, (video, outputs.latents, outputs.report, outputs.preview), strict=True))
    state = video.with_suffix(STATE) if outputs.keep_every or outputs.resume else None
    shown = video.with_suffix(PREVIEW) if outputs.preview_every is not None else None
    claims = {**files, "resume" if outputs.resume else "checkpoint-every": state, "preview-every": shown}
    with claimed(claims):
        remove_stale([path for path in (*claims.values(), video.with_suffix(LATENTS)) if path is not None])
        yield


def check_outputs(
    outputs: Outputs, video: Path, legal: tuple[str, ...] = ENDINGS["out"], given: Sequence[Path | None] = ()
) -> None:
    """Check that endings are known, folders writable, files distinct, and nothing is overwritten unasked.

    `legal` are the endings that the clip itself may have, the usual one first; `given` the files that it starts from.

    Raises RequestError: output-format, output-folder, output-exists, output-given, output-twice.
    """
    files = dict(zip(ENDINGS, (video, outputs.latents, outputs.report, outputs.preview), strict=True))
    for name, path in files.items():
        if path is not None:
            may_write(name, path, legal if name == "out" else ENDINGS[name], outputs.overwrite)
            if any(other is not None and path.exists() and path.samefile(other) for other in given):
                raise RequestError("output-given", name, path, "is a file that the clip starts from", "another name")
    if outputs.preview is not None and outputs.preview.absolute() == video.absolute():
        problem = "is also the file of --out"
        raise RequestError("output-twice", "preview", video, problem, "one of them", [{"preview": None}])
    if outputs.preview_every is not None:
        _check_shown(outputs, video.with_suffix(PREVIEW), given)


def _check_shown(outputs: Outputs, shown: Path, given: Sequence[Path | None]) -> None:
    """Check what shows the clip while it is made, which replaces the one that an ended run has left."""
    every = outputs.preview_every
    if every is not None and every < 1:
        raise RequestError("quantity", "preview-every", every, "must be 1 or more", [1])
    others = [path.absolute() for path in (outputs.preview, *given) if path is not None]
    if shown.absolute() in others:
        problem = f"writes {shown}, which is another file of the run"
        raise RequestError("output-twice", "preview-every", every, problem, "another name", [{"preview-every": None}])


def check_latents(path: Path, size: int) -> None:
    """Check that final latents of `size` bytes can be kept until they are decoded.

    Raises RequestError (output-folder).
    """
    check_folder("out", path)
    free = shutil.disk_usage(path.absolute().parent).free
    if free < size:
        problem = f"the disk has {free / 1e3:,.0f} kB left, and the final latents take {size / 1e3:,.0f} kB"
        raise RequestError("output-folder", "out", path, problem, "a folder with more room")


def tags_of(part: Path) -> Path:
    """The file with the tags of a video that is not complete."""
    return part.with_suffix(".tags")


def remove_parts(parts: Iterable[Path]) -> None:
    """Remove what an interrupted run left of its files."""
    for part in parts:
        for leftover in (part, tags_of(part)):
            with suppress(OSError):
                leftover.unlink()


def remove_stale(files: Sequence[Path]) -> None:
    """Remove what processes of this machine left unfinished of these files when they were killed.

    To be called by whoever alone may write them.
    """
    names = "|".join(re.escape(path.name) for path in files)
    stale = re.compile(rf"\.(?:{names})\.(\d{{1,9}})\.(?:part|tags|look)")
    for folder in {path.absolute().parent for path in files}:
        with suppress(OSError):
            for path in folder.iterdir():
                found = stale.fullmatch(path.name)
                if found is not None and not _is_there(int(found[1])):
                    path.unlink(missing_ok=True)


def _is_there(pid: int) -> bool:
    """Whether a process is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is another user's
        return True
    return True
