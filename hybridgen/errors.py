"""What a user is told when a request cannot be served, or a run failed: data, rendered in one place. No torch."""

from __future__ import annotations

import difflib
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Change = Mapping[str, str | None]
"""Flags to set in a command, without dashes; None takes a flag away, "" is a flag without a value.

{"ulysses": "8", "ring": None, "dry-run": ""}
"""


MOST_SHOWN = 200
"""Characters of a value, or of a key, that a message shows."""


class Place(NamedTuple):
    """A place in a file; line and column count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class RequestError(ValueError):
    """A request that cannot be served as asked (exit code 2). Nothing has been started or loaded.

    All parts are data; only `message` and `lines()` make sentences of them.
    """

    def __init__(
        self,
        rule: str,
        flag: str,
        value: object,
        problem: str,
        nearest: Sequence[object] | str = (),
        tries: Iterable[Change | str] | None = None,
        place: Place | None = None,
    ) -> None:
        """
        rule: id of the broken rule, as `hybridgen explain` takes it.
        flag: the flag without dashes ("ulysses"), or a key of the file at `place` ("request.size"); "" for neither.
        value: what was given; None where nothing was.
        problem: what is wrong, as a clause that follows "FLAG VALUE: ".
        nearest: legal values of the flag, the closest first; or a phrase that says what to use instead.
        tries: changes of flags, or whole commands, to try; by default the flag with the first of `nearest`.
        place: where in a file the key stands.
        """
        nearest = nearest if isinstance(nearest, str) else tuple(nearest)
        if tries is None:
            has_value = flag and nearest and not isinstance(nearest, str) and place is None
            tries = [{flag: str(nearest[0])}] if has_value else []
        super().__init__(rule, flag, value, problem, nearest, tuple(tries), place)
        self.rule, self.flag, self.value, self.problem = rule, flag, value, problem
        self.nearest, self.tries, self.place = nearest, tuple(tries), place
        self.others: tuple[RequestError, ...] = ()
        """Further faults of the same file."""
        self.helps: tuple[str, ...] = ()
        """What else would help, a line each, with what it takes."""

    @property
    def subject(self) -> str:
        """What the problem is with: "--ulysses 6", or "request.size 81" for a key of a file."""
        name = "" if not self.flag else self.flag if self.place else _flag(self.flag)
        value = "" if self.value is None else str(self.value)
        return " ".join(_cut(part) for part in (name, value) if part)

    @property
    def complaint(self) -> str:
        """The message without what to use instead: "--ulysses 6: does not divide the 40 heads of wan2.2"."""
        return f"{self.subject}: {self.problem}" if self.subject else self.problem

    @property
    def remark(self) -> str:
        """The message without the place: "--ulysses 6: does not divide the 40 heads of wan2.2; nearest: 5, 8"."""
        if not self.nearest:
            return self.complaint
        if isinstance(self.nearest, str):
            return f"{self.complaint}; nearest: {self.nearest}"
        values: Sequence[Any] = self.nearest
        if all(isinstance(value, int) for value in values):
            values = sorted(values)
        return f"{self.complaint}; nearest: {', '.join(map(str, values))}"

    @property
    def message(self) -> str:
        """The first line: "my.yaml:3:5: request.steps 'x': must be a whole number"."""
        return f"{self.place}: {self.remark}" if self.place else self.remark

    def __str__(self) -> str:
        return self.message

    def changed(self, **parts: Any) -> RequestError:
        """The error with some parts replaced, as dataclasses.replace() does."""
        names = ("rule", "flag", "value", "problem", "nearest", "tries", "place")
        found = RequestError(**{name: parts.get(name, getattr(self, name)) for name in names})
        found.others, found.helps = self.others, self.helps
        return found

    def commands(self, command: Sequence[str] = ()) -> list[str]:
        """What to try, as whole commands; `command` is what the user typed, as words."""
        return [t if isinstance(t, str) else quoted(changed(list(command), t)) for t in self.tries]

    def lines(self, command: Sequence[str] = (), reasons: Mapping[str, str] | None = None) -> list[str]:
        """What is printed: a first line that says it all, then at most one why:, and the help: and try: lines.

        The same for every further fault. `reasons` are the reasons of rules, by id.
        """
        why = (reasons or {}).get(self.rule, "")
        return [
            f"error[{self.rule}]: {self.message}",
            *([f"  why:  {why}"] if why else []),
            *(f"  help: {line}" for line in self.helps),
            *(f"  try:  {line}" for line in self.commands(command)),
            *(line for other in self.others for line in other.lines(command, reasons)),
        ]

    def as_data(self, command: Sequence[str] = (), reasons: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The error as data, for --json; absent parts are null or empty."""
        return {
            "rule": self.rule,
            "flag": self.flag or None,
            "value": None if self.value is None else str(self.value),
            "problem": self.problem,
            "nearest": self.nearest if isinstance(self.nearest, str) else [str(value) for value in self.nearest],
            "tries": self.commands(command),
            "place": self.place and self.place._asdict(),
            "message": self.message,
            "why": (reasons or {}).get(self.rule),
            **({"helps": list(self.helps)} if self.helps else {}),
            **({"others": [other.as_data(command, reasons) for other in self.others]} if self.others else {}),
        }


def _cut(text: str) -> str:
    """Text of a user for a message: its beginning, where it is long."""
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def assert_unique(what: str, given: Iterable[object]) -> None:
    """Raise AssertionError that names what is declared twice."""
    twice = [str(one) for one, count in Counter(given).items() if count > 1]
    assert not twice, f"declared twice: {what} {', '.join(twice)}"


def did_you_mean(word: str, known: Iterable[str], count: int = 1, cutoff: float = 0.6) -> list[str]:
    """The known words that are spelled most like this one, closest first; at most `count`."""
    return difflib.get_close_matches(word, list(known), count, cutoff)


def counted(count: int, noun: str) -> str:
    """A counted noun: 1 file, 2 files."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def changed(command: list[str], change: Change) -> list[str]:
    """The command with some flags set or taken away, others as they were and where they were."""
    words, open_changes = list(command), dict(change)
    for name, value in change.items():
        flag = _flag(name)
        for at, word in enumerate(words):
            if (word == flag and at + 1 < len(words)) or word.startswith(f"{flag}="):
                width = 2 if word == flag else 1
                words[at : at + width] = [] if value is None else [flag, value]
                del open_changes[name]
                break
    return words + [w for name, value in open_changes.items() if value is not None for w in (_flag(name), value) if w]


def quoted(words: Iterable[str]) -> str:
    """Words as a command in one line, for a shell; line ends and other control characters are escaped."""
    return " ".join(shlex.quote(word) if word.isprintable() else f"$'{_escaped(word)}'" for word in words)


def _escaped(word: str) -> str:
    """A word in the form of bash's $'...'."""
    plain = word.replace("\\", r"\\").replace("'", r"\'")
    return "".join(one if one.isprintable() else f"\\u{ord(one):04x}" for one in plain)


def _flag(name: str) -> str:
    return f"-{name}" if len(name) == 1 else f"--{name}"


PREEMPTED = "preempted"
"""Rule of a run that has kept its state and ended, because a cluster takes its machines back."""


@dataclass(eq=False)
class RunFailed(Exception):
    """A run that started and did not finish (exit code 1): which rank, where and why."""

    rule: str
    message: str
    notes: tuple[str, ...] = ()
    traceback: str = field(default="", repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """What pickle makes the error of again; an exception's own way knows positional arguments only."""
        return RunFailed, (self.rule, self.message), self.__dict__

    def lines(self) -> list[str]:
        return [f"error[{self.rule}]: {self.message}", *(f"  {note}" for note in self.notes)]

    def __str__(self) -> str:
        return "\n".join(self.lines() + ([self.traceback] if self.traceback else []))
