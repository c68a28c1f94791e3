"""Flags made from the recipe's fields, so that flags, YAML keys and fields are one list."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Annotated, Any, Optional, get_args

import typer

from hybridgen.engine import environment
from hybridgen.recipe import fields as recipe
from hybridgen.recipe.flags import name_of
from hybridgen.recipe.typed import hints, plain

PANELS = {"": "Model", "checkpoint": "Model", "request": "Clip", "parallel": "Parallel", "runtime": "Runtime"}
MOST_PROMPT = 2**20
"""Most bytes of a prompt that is read from a file."""


def given_words(given: recipe.Recipe, sections: tuple[str, ...], **instead: Any) -> list[str]:
    """Given fields of a recipe's sections as words of a command.

    `instead` are other values for some fields, by name; None leaves one out.
    """
    found: list[str] = []
    for section, name, item in recipe.options():
        value = getattr(getattr(given, section) if section else given, name)
        value = value if value is None else instead.get(name, value)
        if section in sections and value is not None:
            if isinstance(value, bool):
                found.append(name_of(item) if value else f"--no-{name}")
                continue
            shown = ",".join(value) if isinstance(value, list) else str(value)
            found += ["-p" if name == "prompt" else name_of(item), shown]
    return found


def prompt_of(given: str) -> str:
    """The prompt that a flag gives: the text of FILE for @FILE, of stdin for -, or the words as they are.

    @@ at the start stands for one @. Only the reporting rank of a joined job reads. Raises RequestError (prompt).
    """
    if given.startswith("@@"):
        return given[1:]
    if (given != "-" and not given.startswith("@")) or not environment.is_reporter():
        return given
    from hybridgen.recipe.prompts import read_text

    name = given if given == "-" else given[1:]
    near = f"@{given} for a prompt that starts with @" if given != "-" else ""
    return read_text(name, MOST_PROMPT, "prompt", "prompt", given, near).strip()


def with_flags(
    own: type, sections: tuple[str, ...] = tuple(PANELS), without: tuple[str, ...] = ()
) -> Callable[[Callable[..., Any]], Any]:
    """Give a verb the flags of these sections of a recipe but for some fields, and those that the dataclass `own`
    declares.

    The verb takes an instance of `own`, and the recipe's flags as a dictionary {field name: value or None}.
    """

    def decorate(verb: Callable[..., Any]) -> Any:
        def command(**given: Any) -> None:
            mine = {item.name: given.pop(item.name) for item in fields(own)}
            if given.get("prompt") is not None:
                given["prompt"] = prompt_of(given["prompt"])
            verb(own(**mine), given)

        params = [_of_recipe(*one) for one in recipe.options() if one[0] in sections and one[1] not in without]
        params += [_parameter(item, _as_typed(hints(own)[item.name]), item.metadata["panel"]) for item in fields(own)]
        command.__name__, command.__doc__ = verb.__name__, verb.__doc__
        command.__signature__ = inspect.Signature(params)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in params}
        return command

    return decorate


def offered(values: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """What a shell offers of these values: those that start as the word does."""

    def complete(incomplete: str) -> list[str]:
        return [value for value in values() if value.startswith(incomplete)]

    return complete


def _as_typed(kind: Any) -> Any:
    """The type of a flag on a command line, where numbers or text are typed as text."""
    return Optional[str] if str in (types := get_args(kind)) and {float, int} & {*types} else kind


def _of_recipe(section: str, name: str, item: Any) -> inspect.Parameter:
    kind = plain(hints(recipe.SECTIONS.get(section, recipe.Recipe))[name])
    if kind not in (int, float, bool):  # lists, and numbers or text, are typed as text
        kind = str
    return _parameter(item, Optional[kind], PANELS[section])


def _parameter(item: Any, kind: Any, panel: str) -> inspect.Parameter:
    about, kinds = item.metadata, inspect.Parameter
    if about.get("argument"):
        place = typer.Argument(help=about["description"], metavar=about["metavar"])
        return kinds(item.name, kinds.KEYWORD_ONLY, annotation=Annotated[kind, place])
    switch = f"/--no-{item.name}" if kind == Optional[bool] else ""
    names = about["flags"] or (name_of(item) + switch,)
    info = typer.Option(
        *names,
        help=about["description"],
        metavar=about["metavar"],
        rich_help_panel=panel,
        autocompletion=offered(about["values"]) if about["values"] else None,
    )
    return kinds(item.name, kinds.KEYWORD_ONLY, default=item.default, annotation=Annotated[kind, info])
