"""A YAML file with the place of every key, for messages that say where a fault stands. No torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Place = tuple[int, int]
"""(line, column), from 1."""


class Unreadable(Exception):
    """A file that is not there or is no YAML. `problem` is one clause; `place` is None where none is known."""

    def __init__(self, problem: str, place: Place | None = None) -> None:
        super().__init__(problem)
        self.problem, self.place = problem, place

    @property
    def at(self) -> str:
        """ ":2:1", to stand behind the file's name; "" where no place is known."""
        return ":{}:{}".format(*self.place) if self.place else ""


@dataclass(frozen=True)
class Document:
    """What a file holds: its text, yaml's node of it (keys with their marks), and the values."""

    text: str
    node: Any
    content: Any


def read(file: Path) -> Document:
    """Raises Unreadable."""
    import yaml

    try:
        text = file.read_text(encoding="utf-8")
        document = Document(text, yaml.compose(text), yaml.safe_load(text))
        if document.node is not None:
            deque(places(document.node), maxlen=0)  # ends, unless something holds itself
        return document
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise Unreadable(f"is not YAML: {error.problem}", (mark.line + 1, mark.column + 1) if mark else None) from error
    except RecursionError as error:
        raise Unreadable("is nested too deep, or an alias in it stands for what holds it") from error
    except UnicodeDecodeError as error:
        raise Unreadable("is not YAML: not text") from error
    except (yaml.YAMLError, ValueError) as error:  # characters that YAML has not; 2026-13-45, which is no date
        raise Unreadable(f"is not YAML: {str(error).splitlines()[0]}") from error


def places(node: Any, path: str = "") -> Iterator[tuple[str, Place]]:
    """Dotted path and place of every key, and of every entry of a list (by number)."""
    if node.id == "mapping":
        for key, value in node.value:
            name = f"{path}{key.value}"
            yield name, (key.start_mark.line + 1, key.start_mark.column + 1)
            yield from places(value, f"{name}.")
    if node.id == "sequence":
        for number, value in enumerate(node.value):
            yield f"{path}{number}", (value.start_mark.line + 1, value.start_mark.column + 1)
            yield from places(value, f"{path}{number}.")


def doubled(node: Any, path: str = "") -> Iterator[tuple[str, Place]]:
    """Dotted path and place of every key that was given before, of which YAML would silently take the last."""
    if node.id == "mapping":
        seen: set[str] = set()
        for key, value in node.value:
            name = f"{path}{key.value}"
            if name in seen:
                yield name, (key.start_mark.line + 1, key.start_mark.column + 1)
            seen.add(name)
            yield from doubled(value, f"{name}.")
    if node.id == "sequence":
        for number, value in enumerate(node.value):
            yield from doubled(value, f"{path}{number}.")
