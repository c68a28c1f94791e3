"""What an error suggests, tried before it is shown: each command works, each nearest value is legal.

A suggestion that runs into another refusal is followed to a command that works, and is left out where there is none.
"""

from __future__ import annotations

import io
import shlex
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeGuard

from typer.exceptions import TyperException

from hybridgen.errors import Change, RequestError, changed, quoted
from hybridgen.recipe import library
from hybridgen.recipe.compose import compose
from hybridgen.recipe.fields import keys_of
from hybridgen.recipe.typed import dotted

DEPTH = 5
"""Most refusals that are followed from one suggestion."""
WRITES = ("save", "plot")
"""Flags of `plan` that write a file; they are left out where a command is only tried."""
OPENED = ("image", "video", "prompt-missing")
"""Rules that a command may break here: it names a file or a prompt that is still to be made."""


def working(error: RequestError, words: Sequence[str], app: Any) -> RequestError:
    """The error with suggestions that work, as whole commands.

    words: the command that was refused, with the program's name; app: the program that reads commands.
    """
    if list(words[1:2]) not in (["run"], ["plan"]):
        return error.changed(
            tries=[one if isinstance(one, str) else _renamed(error, one, words) for one in error.tries]
        )
    found = [quoted(end) for one in error.tries if (end := _end(one, list(words), app)) is not None]
    nearest: Any = error.nearest
    if keys_of(error.flag) and error.place is None and not isinstance(nearest, str):
        nearest = [value for value in nearest if _is_legal({error.flag: str(value)}, list(words), app)]
    return error.changed(tries=list(dict.fromkeys(found)), nearest=nearest)


def _renamed(error: RequestError, change: Change, words: Sequence[str]) -> str:
    """A command that names a thing without a flag, with the name that is suggested."""
    named = change.get(error.flag)
    if named is not None and str(error.value) in words:
        return quoted(named if word == str(error.value) else word for word in words)
    return quoted(changed(list(words), change))


def _end(suggested: Change | str, words: list[str], app: Any) -> list[str] | None:
    """The words of a suggested command that works, or of the one that its refusals lead to."""
    if _builds(suggested):
        return _with(words, suggested)
    if isinstance(suggested, str):
        there = shlex.split(suggested)
        return there if there[:2] not in (["hybridgen", "run"], ["hybridgen", "plan"]) else _followed(there, app, DEPTH)
    return _followed(_with(words, suggested), app, DEPTH)


def _followed(words: list[str], app: Any, depth: int) -> list[str] | None:
    error = refusal(words, app)
    if error is None:
        return words
    changes = [one for one in error.tries if not isinstance(one, str)] if depth else []
    for change in changes:
        if (there := _with(words, change)) != words and (end := _followed(there, app, depth - 1)) is not None:
            return end
    return None


def _is_legal(change: Change, words: list[str], app: Any) -> bool:
    """Whether a value is not refused for its flag."""
    if _builds(change):
        return True
    error = refusal(_with(words, change), app)
    return error is None or error.flag not in change


def _builds(change: Change | str) -> TypeGuard[Change]:
    """Whether trying a change would build a tiny checkpoint, which takes seconds; those that there are can be used."""
    return not isinstance(change, str) and str(change.get("model")).startswith("tiny:")


def _with(words: list[str], change: Change) -> list[str]:
    """The command with some flags set or taken away; a value that a recipe or --set gives is taken away by --set."""
    found = changed(words, change)
    recipe, settings = _values(words, "--recipe"), _values(words, "--set")
    gone = [keys for name, value in change.items() if value is None and (keys := keys_of(name))]
    if gone and (recipe or settings):
        with suppress(RequestError):
            held = compose(library.located(Path(recipe[-1])) if recipe else None, settings, {})
            gone = [keys for keys in gone if attrgetter(dotted(keys))(held) is not None]
        found += [word for keys in gone for word in ("--set", f"{dotted(keys)}=null")]
    return found


def _values(words: list[str], flag: str) -> list[str]:
    """The values of a flag in a command."""
    pairs = zip(words, [*words[1:], ""], strict=True)
    given = [(word, after) for word, after in pairs if word.partition("=")[0] == flag]
    return [after if word == flag else word.removeprefix(f"{flag}=") for word, after in given]


def refusal(words: list[str], app: Any) -> RequestError | None:
    """Why a command of run or plan is refused; None where it is not. Nothing is run, written or printed."""
    tried = [*words, "--dry-run"] if words[1] == "run" else changed(words, dict.fromkeys(WRITES))
    stdin = sys.stdin
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        try:
            sys.stdin = None  # a prompt that is read from it was read already
            app(tried[1:], standalone_mode=False, obj={})
        except RequestError as error:
            return None if error.rule in OPENED else error
        except TyperException as error:
            return RequestError("usage", "", None, str(error))
        finally:
            sys.stdin = stdin
    return None
