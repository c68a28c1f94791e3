"""Flags made from the recipe's fields, so that flag, YAML key and field are one list."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any, Optional, get_type_hints

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
    """Other tools' spellings of flags that exist here: tool, flag. Those of strategies are declared with them."""
    from hybridgen.strategies.registry import SETTINGS

    return {flag: peer for item in SETTINGS for flag, peer in item.peers.items()} | PEERS


def given_words(given: recipe.Recipe, sections: tuple[str, ...], **instead: Any) -> list[str]:
    """The fields of a recipe's sections that were given, as words of a command; the prompt is left out.

    `instead` are other values for some of them, by name.
    """
    found: list[str] = []
    for section, name, item in recipe.options():
        value = getattr(getattr(given, section) if section else given, name)
        if section in sections and name != "prompt" and value is not None:
            value = instead.get(name, value)
            found += [recipe.flag_of(item), ",".join(value) if isinstance(value, list) else str(value)]
    return found


def with_recipe_flags(sections: tuple[str, ...] = tuple(PANELS)) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a verb that takes **flags the flags of these sections of a recipe, before its own parameters."""

    def decorate(verb: Callable[..., Any]) -> Callable[..., Any]:
        own = inspect.signature(verb, eval_str=True).parameters.values()
        params = [_parameter(s, name, item) for s, name, item in recipe.options() if s in sections]
        kinds = inspect.Parameter
        params += [p.replace(kind=kinds.KEYWORD_ONLY) for p in own if p.kind is not kinds.VAR_KEYWORD]
        verb.__signature__ = inspect.Signature(params)  # type: ignore[attr-defined]
        verb.__annotations__ = {p.name: p.annotation for p in params}
        return verb

    return decorate


def with_flags(own: type, sections: tuple[str, ...] = tuple(PANELS)) -> Callable[[Callable[..., Any]], Any]:
    """Give a verb the flags of these sections of a recipe, and those that the dataclass `own` declares.

    The verb takes an instance of `own`, and the recipe's flags as a dictionary {field name: value or None}.
    """

    def decorate(verb: Callable[..., Any]) -> Any:
        def command(**given: Any) -> None:
            mine = {item.name: given.pop(item.name) for item in fields(own)}
            verb(own(**mine), given)

        params = [_parameter(s, name, item) for s, name, item in recipe.options() if s in sections]
        hints = get_type_hints(own)
        params += [_own_parameter(item, hints[item.name]) for item in fields(own)]
        command.__name__, command.__doc__ = verb.__name__, verb.__doc__
        command.__signature__ = inspect.Signature(params)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in params}
        return command

    return decorate


def _own_parameter(item: Any, kind: Any) -> inspect.Parameter:
    about = item.metadata
    names = about["flags"] or (name_of(item),)
    info = typer.Option(*names, help=about["help"], metavar=about["metavar"], rich_help_panel=about["panel"])
    kinds = inspect.Parameter
    return kinds(item.name, kinds.KEYWORD_ONLY, default=item.default, annotation=Annotated[kind, info])


def _parameter(section: str, name: str, item: Any) -> inspect.Parameter:
    about = item.metadata
    names = about["flags"] or (recipe.flag_of(item),)
    info = typer.Option(*names, help=about["description"], metavar=about["metavar"], rich_help_panel=PANELS[section])
    kind = plain(hints(recipe.SECTIONS.get(section, recipe.Recipe))[name])
    if kind not in (int, float):  # lists, and numbers or text, are typed as text
        kind = str
    kinds = inspect.Parameter
    return kinds(name, kinds.KEYWORD_ONLY, default=None, annotation=Annotated[Optional[kind], info])
