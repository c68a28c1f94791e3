"""What a user is told when a request cannot be, or a run failed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Violation:
    """One broken rule: its id, and one sentence that names flag, value, limit and the nearest legal values."""

    rule: str
    message: str
    why: str = ""
    nearest: tuple[str, ...] = ()
    """Complete flag settings that would be legal in its place, nearest first ("--ulysses 5")."""

    def __str__(self) -> str:
        return f"error[{self.rule}]: {self.message}"


class RequestError(ValueError):
    """The request cannot be served as asked (exit code 2); nothing has been started or loaded."""

    def __init__(self, rule: str, message: str, why: str = "", tries: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.rule, self.message, self.why, self.tries = rule, message, why, tuple(tries)

    def lines(self) -> list[str]:
        """The whole message: a first line that says it all, then at most one why: and the try: lines."""
        why = [f"  why:  {self.why}"] if self.why else []
        return [f"error[{self.rule}]: {self.message}", *why, *(f"  try:  {line}" for line in self.tries)]


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
