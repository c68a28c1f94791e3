"""What a user is told when a request cannot be, or a run failed."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Change = Mapping[str, str | None]
"""Flags to set in a command, without dashes; None takes a flag away, "" is a flag without a value.

{"ulysses": "8", "ring": None, "dry-run": ""}
"""


@dataclass(frozen=True)
class Violation:
    """One broken rule: its id, and one sentence that names flag, value, limit and the nearest legal values."""

    rule: str
    message: str
    nearest: tuple[Change, ...] = ()
    """Changes of flags that would be legal, nearest first."""
    why: str = ""


class RequestError(ValueError):
    """The request cannot be served as asked (exit code 2); nothing has been started or loaded.

    `tries` are what to try: a change of flags, which the command line shows as the user's own command with it, or
    a whole command.
    """

    def __init__(self, rule: str, message: str, why: str = "", tries: Iterable[Change | str] = ()) -> None:
        super().__init__(message)
        self.rule, self.message, self.why, self.tries = rule, message, why, tuple(tries)

    @classmethod
    def of(cls, violation: Violation) -> RequestError:
        """A broken rule as an error; the first of the nearest settings is what to try."""
        return cls(violation.rule, violation.message, violation.why, violation.nearest[:1])

    def lines(self, command: list[str] | None = None) -> list[str]:
        """The whole message: a first line that says it all, then at most one why: and the try: lines.

        `command` is what the user typed, as words; without it a change of flags stands alone.
        """
        why = [f"  why:  {self.why}"] if self.why else []
        tries = [t if isinstance(t, str) else shlex.join(changed(command or [], t)) for t in self.tries]
        return [f"error[{self.rule}]: {self.message}", *why, *(f"  try:  {line}" for line in tries)]


def changed(command: list[str], change: Change) -> list[str]:
    """The command with some flags set or taken away, others as they were and where they were."""
    words, open_changes = list(command), dict(change)
    for name, value in change.items():
        flag = _flag(name)
        for at, word in enumerate(words):
            if word == flag and at + 1 < len(words) or word.startswith(f"{flag}="):
                width = 2 if word == flag else 1
                words[at : at + width] = [] if value is None else [flag, value]
                del open_changes[name]
                break
    return words + [w for name, value in open_changes.items() if value is not None for w in (_flag(name), value) if w]


def _flag(name: str) -> str:
    return f"-{name}" if len(name) == 1 else f"--{name}"


@dataclass
class RunFailed(Exception):
    """A run that started and did not finish (exit code 1): which rank, where and why."""

    rule: str
    message: str
    notes: tuple[str, ...] = ()
    traceback: str = field(default="", repr=False)

    def lines(self) -> list[str]:
        return [f"error[{self.rule}]: {self.message}", *(f"  {note}" for note in self.notes)]

    def __str__(self) -> str:
        return "\n".join(self.lines() + ([self.traceback] if self.traceback else []))
