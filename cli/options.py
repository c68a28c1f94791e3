"""Flags made from the recipe's fields, so that flags, YAML keys and fields are one list."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any, Optional

import typer

from hybridgen.recipe import fields as recipe
from hybridgen.recipe.flags import name_of
from hybridgen.recipe.typed import hints, plain

PANELS = {"": "Model", "checkpoint": "Model", "request": "Clip", "parallel": "Parallel", "runtime": "Runtime"}

PEERS = {
    "--num_inference_steps": ("xDiT", "--steps"),
    "--num_frames": ("xDiT", "--frames"),
    "--guidance_scale": ("xDiT", "--guidance"),
    "--output": ("other tools", "--out"),
}


def peers() -> dict[str, tuple[str, str]]:
    """Other tools' spellings of flags that exist here (tool, flag); those of strategies are declared with them."""
    from hybridgen.strategies.registry import SETTINGS

    return {flag: peer for item in SETTINGS for flag, peer in item.peers.items()} | PEERS


def given_words(given: recipe.Recipe, sections: tuple[str, ...], **instead: Any) -> list[str]:
    """Given fields of a recipe's sections as words of a command.

    `instead` are other values for some fields, by name; None leaves one out.
    """
    found: list[str] = []
    for section, name, item in recipe.options():
        value = getattr(getattr(given, section) if section else given, name)
        value = value if value is None else instead.get(name, value)
        if section in sections and value is not None:
            shown = ",".join(value) if isinstance(value, list) else str(value)
            found += ["-p" if name == "prompt" else name_of(item), shown]
    return found


def with_flags(own: type, sections: tuple[str, ...] = tuple(PANELS)) -> Callable[[Callable[..., Any]], Any]:
    """Give a verb the flags of these sections of a recipe, and those that the dataclass `own` declares.

    The verb takes an instance of `own`, and the recipe's flags as a dictionary {field name: value or None}.
    """

    def decorate(verb: Callable[..., Any]) -> Any:
        def command(**given: Any) -> None:
            mine = {item.name: given.pop(item.name) for item in fields(own)}
            verb(own(**mine), given)

        params = [_of_recipe(*one) for one in recipe.options() if one[0] in sections]
        params += [_parameter(item, hints(own)[item.name], item.metadata["panel"]) for item in fields(own)]
        command.__name__, command.__doc__ = verb.__name__, verb.__doc__
        command.__signature__ = inspect.Signature(params)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in params}
        return command

    return decorate


def _of_recipe(section: str, name: str, item: Any) -> inspect.Parameter:
    kind = plain(hints(recipe.SECTIONS.get(section, recipe.Recipe))[name])
    if kind not in (int, float):  # lists, and numbers or text, are typed as text
        kind = str
    return _parameter(item, Optional[kind], PANELS[section])


def _parameter(item: Any, kind: Any, panel: str) -> inspect.Parameter:
    about, kinds = item.metadata, inspect.Parameter
    names = about["flags"] or (name_of(item),)
    info = typer.Option(*names, help=about["description"], metavar=about["metavar"], rich_help_panel=panel)
    return kinds(item.name, kinds.KEYWORD_ONLY, default=item.default, annotation=Annotated[kind, info])
