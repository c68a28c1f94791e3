"""Files that appear whole or not at all, and whether a file may be written where the user asks. No torch."""

from __future__ import annotations

import errno
import os
import shlex
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from hybridgen.errors import RequestError

RULES = {
    "output-exists": "Nothing is overwritten unasked, and files are checked before a run starts, so no work is lost.",
    "output-folder": "A file must be writable before a run starts, so that the result of the run is not lost.",
    "output-format": "The ending of a file chooses its format. A clip of one frame is a .png, or an .mp4 when the "
    "name says so.",
}
PROBE = 4096
"""Bytes that a look at a folder writes, so that a full disk shows."""


def read_bytes(path: Path, most: int) -> bytes:
    """The first `most` bytes of a file. Raises OSError, also for what is not a regular file and might never end."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # which does not wait for the writer of a pipe
    try:
        if stat.S_ISDIR(kind := os.fstat(file).st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(kind):
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
        with os.fdopen(file, "rb", closefd=False) as reader:
            return reader.read(most)
    finally:
        os.close(file)


def part_of(path: Path, owner: object) -> Path:
    """The unfinished form of a file, in the same folder. `owner` keeps two writers of one file apart."""
    return path.with_name(f".{path.name}.{owner}.part")


@contextmanager
def written_whole(path: Path, owner: object = None, overwrite: bool = True) -> Iterator[Path]:
    """Give a path to write to; the file takes its name `path` when the block ends well, and is removed otherwise.

    `owner` names the unfinished file, by default after this process. Without `overwrite`, FileExistsError is raised
    where `path` exists at the end, and the file that is there stays.
    """
    part = part_of(path, os.getpid() if owner is None else owner)
    try:
        yield part
        take_name(part, path, overwrite)
    finally:
        part.unlink(missing_ok=True)


def take_name(part: Path, path: Path, overwrite: bool = True) -> None:
    """Rename a finished file. Raises FileExistsError where the name is taken and `overwrite` is not set."""
    if overwrite:
        part.replace(path)
        return
    try:
        os.link(part, path)  # unlike a rename, it fails when the name is taken
    except FileExistsError:
        raise
    except OSError:  # exFAT, gcsfuse and others have no hard links: an empty file holds the name
        path.open("xb").close()
        part.replace(path)
    else:
        part.unlink()


def take_free_name(part: Path, path: Path, overwrite: bool = False) -> Path:
    """Rename a finished file to `path`, or to the first free name beside it where that is taken; returns the name."""
    while True:
        free = path if overwrite else free_name(path)
        with suppress(FileExistsError):  # another run was faster
            take_name(part, free, overwrite)
            return free


def free_name(path: Path, ending: str = "", is_taken: Callable[[Path], bool] = lambda path: False) -> Path:
    """The path, or the first with a counter before its ending that does not exist and is not taken."""
    ending = ending or path.suffix
    stem, count, free = path.name.removesuffix(ending), 1, path
    while free.exists() or free.is_symlink() or is_taken(free):
        count += 1
        free = path.with_name(f"{stem}-{count}{ending}")
    return free


def may_write(
    flag: str, path: Path, endings: Sequence[str] = (), overwrite: bool = False, can_overwrite: bool = True
) -> None:
    """Check that a file can be written before the work that it is for.

    flag: the flag that named it, without dashes.
    endings: legal endings, the usual one first; none where any will do.
    overwrite: whether a file that exists may be replaced.
    can_overwrite: whether the command has the flag --overwrite to say so.

    Raises RequestError: output-format, output-folder, output-exists.
    """
    if endings and path.suffix.lower() not in endings:
        near = path.with_suffix(endings[0]) if path.name else Path(f"clip{endings[0]}")
        raise RequestError("output-format", flag, path, f"must end in {' or '.join(endings)}", [near])
    if not path.name:
        raise RequestError("output-exists", flag, path, "is a folder", "the name of a file", [])
    check_folder(flag, path)
    if path.is_dir():
        raise RequestError("output-exists", flag, path, "is a folder", "the name of a file", [])
    if path.exists() and not overwrite:
        free = free_name(path)
        problem = "exists; --overwrite replaces it" if can_overwrite else "exists, and nothing is overwritten"
        raise RequestError("output-exists", flag, path, problem, [free])


def check_folder(flag: str, path: Path) -> None:
    """Try to write a file beside it, and to give it a name. Raises RequestError (output-folder)."""
    try:
        if path.absolute().parent.is_dir():
            return _try_names(path)
    except (OSError, ValueError) as error:  # a null byte is a ValueError
        problem = f"cannot be written: {getattr(error, 'strerror', None) or error}"
        raise RequestError("output-folder", flag, path, problem) from error
    tries = [f"mkdir -p {shlex.quote(str(path.parent))}"]
    raise RequestError("output-folder", flag, path, f"the folder {path.parent} does not exist", tries=tries)


def _try_names(path: Path) -> None:
    """Do beside the file what its end will do, as long names included: write a part, and give it a name."""
    part = part_of(path, os.getpid())
    named = part.with_suffix(".look")
    try:
        part.write_bytes(bytes(PROBE))
        take_name(part, named, overwrite=False)
    finally:
        part.unlink(missing_ok=True)
        named.unlink(missing_ok=True)
