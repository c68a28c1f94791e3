"""A job of many clips as it is told: the clips that it wants, what became of them, what a screen shows. No torch."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hybridgen.api.session import Engine
from hybridgen.api.spine import Screen
from hybridgen.distributed.progress import Event
from hybridgen.engine import environment
from hybridgen.engine.job import Job
from hybridgen.engine.report import Report
from hybridgen.engine.tickets import Ticket
from hybridgen.errors import Place, RequestError, RunFailed


@dataclass(frozen=True)
class Wanted:
    """One clip of a job."""

    number: int
    """Its number among all clips of the job, from 1."""
    fields: dict[str, Any]
    """The fields of the request that it sets."""
    out: str | None = None
    """The name of its file, where its line has one."""
    place: Place | None = None
    fault: RequestError | None = None
    """Why it is no clip."""


@dataclass
class Summary:
    """What became of the clips of a job."""

    total: int
    """Clips of the job, or of its shard."""
    made: int = 0
    skipped: int = 0
    """Clips that were there already."""
    refused: int = 0
    """Clips that could not be made as asked."""
    failed: int = 0
    """Clips in which a rank failed."""
    looked_at: int = 0
    """Clips of a dry run that can be made."""
    seconds: float = 0.0
    outputs: list[Path] = field(default_factory=list)

    @property
    def an_hour(self) -> float:
        """Clips that were made, an hour."""
        return self.made * 3600 / self.seconds if self.seconds else 0.0


class ManyScreen(Screen):
    """What is shown of a job of many clips; the base class shows nothing."""

    def planned_many(self, engine: Engine, count: int, shard: tuple[int, int]) -> None:
        """Show the job that is about to start."""

    def event(self, ticket: Ticket, event: Event) -> None:
        """Show what happens to a clip; called in a thread. Rank 0 shows stages and steps itself, unless there are
        replicas.
        """

    def asked(self, wanted: Wanted, job: Job) -> None:
        """Take note of a clip that is asked for."""

    def made(self, wanted: Wanted, report: Report) -> None:
        """Show that a clip is complete."""

    def skipped(self, wanted: Wanted, path: Path) -> None:
        """Show that a clip was there already."""

    def refused(self, wanted: Wanted, error: RequestError) -> None:
        """Show why a clip cannot be made."""

    def failed(self, wanted: Wanted, failure: RunFailed) -> None:
        """Show why a clip was not completed."""


def shard_of(text: str | None) -> tuple[int, int]:
    """The shard (i, n) of "i/n", or of a Slurm array's task; (1, 1) is all. Raises RequestError (shard)."""
    text = environment.array_task() if text is None else text
    if text is None:
        return 1, 1
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    index, count = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= index <= count:
        raise RequestError("shard", "shard", text, "is not i/n with i from 1 to n", ["1/4"])
    return index, count


def tell_more(error: BaseException, notes: list[str]) -> None:
    """Have an error tell what was made. Ranks that end together have told it."""
    if isinstance(error, RunFailed):
        error.notes += tuple(note for note in notes if note not in error.notes)
    elif isinstance(error, RequestError):
        error.helps += tuple(notes)
    else:
        for note in notes:
            error.add_note(note)
