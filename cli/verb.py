"""A command that reads plain values itself. For the first value it reads, typer loads pydantic: 45 ms of CPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from typer.core import TyperCommand, TyperGroup

PLAIN: dict[Any, tuple[Callable[[str], Any], str]] = {
    int: (int, r"[+-]?[0-9]{1,18}"),
    float: (float, r"[+-]?[0-9]+(\.[0-9]*)?"),
    str: (str, r"(?s).*"),
    Path: (Path, r"(?s).+"),
}
"""By type of a flag: what reads its values, and those that are plain."""


class _Plain:
    """A command of typer's. Values that are not plain, and wrong ones, are left to typer, which words the error."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if "process_value" not in vars(param):
                param.process_value = partial(_read, param, param.process_value)
        return params


class Verb(_Plain, TyperCommand):
    """One command."""


class Verbs(_Plain, TyperGroup):
    """Several commands under one name."""


def _read(param: Any, typers: Callable[[Any, Any], Any], context: Any, value: Any) -> Any:
    """The value of a flag or argument in its type, as its callback leaves it."""
    kind, pattern = PLAIN.get(param.type_descriptor.annotation, (None, ""))
    if value is None and not param.required:
        value = () if param.multiple or param.nargs == -1 else None
    elif kind is not None and isinstance(value, str) and re.fullmatch(pattern, value):
        value = kind(value)
    else:
        return typers(context, value)
    return value if param.callback is None else param.callback(context, param, value)
