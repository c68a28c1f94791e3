"""The manifest of a job of many clips: what became of each, so that the job can go on where it ended. No torch."""

from __future__ import annotations

import json
import os
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hybridgen.distributed.claims import claim
from hybridgen.distributed.files import check_folder, read_bytes, written_whole
from hybridgen.engine import record
from hybridgen.engine.outputs import remove_stale
from hybridgen.errors import RequestError, RunFailed

RULE = "manifest"
RULES = {
    RULE: "The manifest says what became of every clip of a job. It belongs to one list of clips: a job that has "
    "another list, or other settings, needs another manifest.",
}
MOST_BYTES = 2**28
"""Bytes of the largest manifest that is read: some 400,000 clips."""
BEGUN, DONE, FAILED, REFUSED = "begun", "done", "failed", "refused"
"""What became of a clip."""


@dataclass
class Manifest:
    """A file of JSON lines, one a clip by its number. It is written whole after every clip, and never half."""

    path: Path
    entries: dict[int, dict[str, Any]] = field(default_factory=dict)
    lines: dict[int, str] = field(default_factory=dict)
    """Entries as they are written, as far as they were."""

    @classmethod
    def at(cls, path: Path) -> Manifest:
        """The manifest in a file, which may not be there yet. Raises RequestError (manifest, output-folder)."""
        check_folder("manifest", path)
        try:
            content = read_bytes(path, MOST_BYTES + 1)
            if len(content) > MOST_BYTES:
                raise RequestError(RULE, "manifest", path, f"has more than {MOST_BYTES:,} bytes", "another name")
            lines = content.decode().splitlines()
            found = [json.loads(line) for line in lines if line.strip()]
            return cls(path, {int(entry["clip"]): dict(entry) for entry in found})
        except FileNotFoundError:
            return cls(path)
        except RequestError:
            raise
        except OSError as error:
            raise RequestError(RULE, "manifest", path, f"cannot be read: {error.strerror}") from error
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise RequestError(RULE, "manifest", path, "is no manifest of a job", "another name") from error

    def begin(self) -> None:
        """Claim the file until this process ends, and read what another job wrote until now. Raises RequestError."""
        weakref.finalize(self, claim("manifest", self.path).release)
        remove_stale([self.path])
        self.entries, self.lines = self.at(self.path).entries, {}

    def note(self, number: int, **entry: Any) -> None:
        """Note what became of a clip, and write the file. Raises RunFailed (manifest)."""
        self.entries[number] = {"clip": number, **entry}
        self.lines.pop(number, None)
        try:
            with written_whole(self.path) as part:
                part.write_text("".join(map(self._line, sorted(self.entries))), encoding="utf-8")
        except OSError as error:
            raise RunFailed(RULE, f"the manifest {self.path} cannot be written: {error.strerror}") from error

    def _line(self, number: int) -> str:
        if number not in self.lines:
            self.lines[number] = f"{json.dumps(self.entries[number], ensure_ascii=False)}\n"
        return self.lines[number]

    def relative(self, path: Path) -> str:
        """A clip's file as an entry names it."""
        return os.path.relpath(path, self.path.parent)

    def is_own(self, number: int, path: Path) -> bool:
        """Whether this job has begun to write that file for that clip, so that it may replace it."""
        return self.entries.get(number, {}).get("output") == self.relative(path)

    def made(self, number: int, asked: dict[str, Any]) -> Path | None:
        """The file of a clip that was made already as it is asked for, and is whole; None where it must be made.

        Raises RequestError (manifest) where that number was another clip.
        """
        entry = self.entries.get(number, {})
        if entry.get("status") != DONE:
            return None
        if entry.get("asked") != asked:
            problem = f"has another clip as number {number}: {json.dumps(entry.get('asked'), ensure_ascii=False)[:120]}"
            raise RequestError(RULE, "manifest", self.path, problem, "another name for another list")
        path = self.path.parent / str(entry["output"])
        return path if self._is_whole(path, entry) else None

    def _is_whole(self, path: Path, entry: dict[str, Any]) -> bool:
        """Whether the file is there, as long as it was, and carries the record of the same latents."""
        try:
            if path.stat().st_size != entry["bytes"]:
                return False
            return record.read(path).latents_sha256 == str(entry["latents_sha256"])
        except (OSError, KeyError, RequestError):
            return False
