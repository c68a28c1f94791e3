"""Files that one run alone may write: a lock beside each, which the kernel takes back when the run ends. No torch."""

from __future__ import annotations

import fcntl
import os
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from hybridgen.distributed.files import free_name
from hybridgen.errors import RequestError

RULES = {
    "output-busy": "Two runs that write one file would mix what they have not finished, and the later one would "
    "replace the result of the other. The run that began first keeps the name.",
}


OWNER = "process {} on {}"
"""What a lock says of the process that holds it."""
_held: set[Claim] = set()
"""The claims of this process."""


class Busy(Exception):
    """Another run holds the claim; the text says which."""


class Claim:
    """The right to write a file, until release(). Raises Busy where another run has it.

    Where the folder cannot be written, or its file system has no locks, nothing is claimed.
    """

    def __init__(self, path: Path) -> None:
        self.lock = path.with_name(f".{path.name}.lock")
        self.file = self._locked()
        _held.add(self)

    def _locked(self) -> int | None:
        """The lock's descriptor. Its file is removed with the claim, so the one that was opened may be gone."""
        while True:
            try:
                file = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            except (OSError, ValueError):  # whoever writes the file says what is wrong with its folder
                return None
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(file), self.lock.stat()):
                    os.ftruncate(file, 0)
                    os.pwrite(file, OWNER.format(os.getpid(), socket.gethostname()).encode(), 0)
                    return file
            except BlockingIOError:
                holder = os.pread(file, 200, 0).decode(errors="replace")
                os.close(file)
                raise Busy(holder) from None
            except FileNotFoundError:
                pass
            except OSError:
                os.close(file)
                with suppress(OSError):
                    self.lock.unlink()
                return None
            os.close(file)

    def release(self) -> None:
        """Give the claim back, and remove its file."""
        _held.discard(self)
        if self.file is not None:
            with suppress(OSError):
                self.lock.unlink()
            os.close(self.file)
            self.file = None


def exit_now(code: int) -> NoReturn:
    """End this process without unwinding, but print what it has said, and give back its claims."""
    with suppress(OSError, AttributeError, ValueError):
        sys.stdout.flush()
    for one in list(_held):
        one.release()
    os._exit(code)


def remove_stale(folders: Iterable[Path]) -> None:
    """Remove the locks that processes which were killed have left in these folders."""
    start, here = OWNER.partition("{}")[0], f" on {socket.gethostname()}"  # where locks of other hosts may not be seen
    for folder in folders:
        for lock in folder.glob(".*.lock"):
            with suppress(OSError, ValueError, Busy):
                text = lock.read_text(errors="replace")
                if text.startswith(start) and text.endswith(here):
                    Claim(lock.with_name(lock.name.removeprefix(".").removesuffix(".lock"))).release()


def claim(flag: str, path: Path) -> Claim:
    """Claim a file that a flag names. Raises RequestError (output-busy)."""
    try:
        return Claim(path)
    except Busy as busy:
        other = free_name(path.with_name(f"{path.stem}-2{path.suffix}"))
        problem = f"another run writes it ({busy})"
        raise RequestError("output-busy", flag, path, problem, [other]) from None


@contextmanager
def claimed(files: Mapping[str, Path | None]) -> Iterator[None]:
    """A block in which this run alone writes files, which are given by flag. Raises RequestError (output-busy)."""
    with ExitStack() as stack:
        for path in {path.absolute(): path for path in files.values() if path is not None}.values():
            flag = next(name for name, one in files.items() if one == path)
            stack.callback(claim(flag, path).release)
        yield


def is_busy(path: Path) -> bool:
    """Whether another run has claimed a file."""
    try:
        Claim(path).release()
    except Busy:
        return True
    return False
