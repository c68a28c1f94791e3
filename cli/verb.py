"""Commands that start fast: each is imported when it is called, and reads plain values without pydantic.

typer loads pydantic for the first value that it reads, which takes 45 ms of CPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import EnumMeta
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from typer import Typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command, get_group

from hybridgen.errors import RequestError, did_you_mean

PLAIN: dict[Any, tuple[Callable[[str], Any], str]] = {
    int: (int, r"[+-]?[0-9]{1,18}"),
    float: (float, r"[+-]?[0-9]+(\.[0-9]*)?"),
    str: (str, r"(?s).*"),
    Path: (Path, r"(?s).+"),
}
"""Readers of plain values, and the values that are plain, by type of a flag."""


@cache
def built(app: Typer) -> Any:
    """The command that a typer declares, built once: a suggestion is tried by running the command again."""
    return get_command(app)


class _Plain:
    """A command of typer. Values that are not plain, and wrong ones, are left to typer, which makes the error."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if "process_value" not in vars(param):
                param.process_value = partial(_read, param, param.process_value)
        return params


class Verb(_Plain, TyperCommand):
    """One command; its flags, as read, are kept in the context's object if that is a dictionary."""

    def invoke(self, ctx: Any) -> Any:
        if isinstance(ctx.obj, dict):
            ctx.obj.update(ctx.params)
        return super().invoke(ctx)


class Verbs(_Plain, TyperGroup):
    """Several commands under one name."""


class NobodyReads(Exception):
    """Whoever read what is printed went away. typer would end with exit code 1 for the error of the system."""


class LazyVerbs(Verbs):
    """Commands known by name and help; the module of one is imported when it is called or completed.

    `modules` names the module of every command: its attribute `app` is the typer.Typer that holds the command, or
    whose commands follow the name.
    """

    modules: ClassVar[dict[str, str]] = {}

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise NobodyReads from error

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        name, _, rest = super().resolve_command(ctx, args)
        group = _group(import_module(self.modules[str(name)]).app)
        return name, group.commands.get(str(name), group), rest


@cache
def _group(app: Typer) -> TyperGroup:
    """The group of commands that a typer declares, built once."""
    return get_group(app)


NUMBERS = {int: "must be a whole number", float: "must be a number"}
"""What is said of a value that is none, by type of a flag."""


def _by_typer(param: Any, typers: Callable[[Any, Any], Any], context: Any, value: Any) -> Any:
    """The value as typer reads it. Raises RequestError (usage) for text that is not a number, or not a choice."""
    kind = param.type_descriptor.annotation
    choices = [str(one.value) for one in list[Any](kind)] if isinstance(kind, EnumMeta) else []
    try:
        return typers(context, value)
    except TyperException as error:
        problem = "is not one of the choices" if choices else NUMBERS.get(kind)
        if problem is None or not isinstance(value, str):
            raise
        near = [*did_you_mean(value, choices), *choices]
        raise RequestError("usage", param.opts[0].lstrip("-"), value, problem, list(dict.fromkeys(near))) from error


def _read(param: Any, typers: Callable[[Any, Any], Any], context: Any, value: Any) -> Any:
    """The value of a flag or argument in its type, after its callback."""
    declared = param.type_descriptor.annotation
    kind, pattern = PLAIN.get(declared, (None, ""))
    if value is None and not param.required:
        value = () if param.multiple or param.nargs == -1 else None
    elif isinstance(declared, EnumMeta) and str(value) in list(declared):
        value = declared(value)
    elif declared is bool and isinstance(value, bool):
        pass
    elif kind is not None and isinstance(value, str) and re.fullmatch(pattern, value):
        value = kind(value)
    else:
        return _by_typer(param, typers, context, value)
    return value if param.callback is None else param.callback(context, param, value)
