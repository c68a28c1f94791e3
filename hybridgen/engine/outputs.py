"""The files of a run: their names, and whether they can be written. No torch."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hybridgen.errors import RequestError

ENDINGS = {"out": (".mp4",), "latents": (".safetensors",), "report": (".json",), "preview": (".png",)}
PICTURE = (".png", ".mp4")
"""Endings of a clip of one frame: a picture, unless a video is asked for by name."""


@dataclass(frozen=True)
class Outputs:
    """Files that a run may write; None means not asked for (the video then gets a name)."""

    video: Path | None = None
    latents: Path | None = None
    report: Path | None = None
    preview: Path | None = None
    overwrite: bool = False


def part_of(path: Path, owner: int) -> Path:
    """Where a run writes a file before it is complete; `owner` is its process, so that two runs do not meet."""
    return path.with_name(f".{path.name}.{owner}.part")


def endings(frames: int) -> tuple[str, ...]:
    """Of the file that a clip of so many frames becomes, the usual one first."""
    return PICTURE if frames == 1 else ENDINGS["out"]


def default_name(prompt: str, seed: int, ending: str = ".mp4") -> Path:
    """A file name from prompt and seed, with a counter if it is taken."""
    slug = re.sub(r"[^a-z0-9]+", "-", prompt.lower().encode("ascii", "ignore").decode()).strip("-")[:40].strip("-")
    return free_name(Path(f"{slug or 'clip'}-s{seed}{ending}"), ending)


def free_name(path: Path, ending: str) -> Path:
    """The path, or the first with a counter before its ending that does not exist."""
    stem, count, free = path.name.removesuffix(ending), 1, path
    while free.exists():
        count += 1
        free = path.with_name(f"{stem}-{count}{ending}")
    return free


def check_outputs(
    outputs: Outputs, video: Path, legal: tuple[str, ...] = ENDINGS["out"], given: Sequence[Path | None] = ()
) -> None:
    """Endings are known, folders can be written, no two are one file, nothing is overwritten unasked.

    `legal` are the endings that the clip itself may have, the usual one first; `given` the files that it starts from.

    Raises RequestError: output-format, output-folder, output-exists, output-given, output-twice.
    """
    files = dict(zip(ENDINGS, (video, outputs.latents, outputs.report, outputs.preview), strict=True))
    for name, path in files.items():
        if path is not None:
            _check_ending(name, path, legal if name == "out" else ENDINGS[name])
            _check_folder(name, path)
            if path.is_dir() or (path.exists() and not outputs.overwrite):
                what = "is a folder; give" if path.is_dir() else "exists; give --overwrite to replace it, or"
                raise RequestError.told("output-exists", f"--{name} {path} {what} another name")
            if any(other is not None and path.exists() and path.samefile(other) for other in given):
                raise RequestError.told(
                    "output-given", f"--{name} {path} is what the clip starts from; give another name"
                )
    if outputs.preview is not None and outputs.preview.absolute() == video.absolute():
        raise RequestError.told(
            "output-twice", f"--out and --preview are both {video}; nearest: one of them", tries=[{"preview": None}]
        )


def _check_ending(name: str, path: Path, legal: tuple[str, ...]) -> None:
    if path.suffix.lower() not in legal:
        near = str(path.with_suffix(legal[0])) if path.name else f"clip{legal[0]}"
        raise RequestError.told(
            "output-format", f"--{name} {path} must end in {' or '.join(legal)}; nearest: {near}", tries=[{name: near}]
        )


def _check_folder(name: str, path: Path) -> None:
    """Try to write beside the file."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise RequestError.told(
            "output-folder",
            f"--{name} {path}: the folder {path.parent} does not exist",
            tries=[f"mkdir -p {shlex.quote(str(path.parent))}"],
        )
    probe = part_of(path, os.getpid())
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise RequestError.told("output-folder", f"--{name} {path} cannot be written: {error.strerror}") from error
