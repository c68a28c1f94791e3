"""The declaration of recipes, for tests that walk over it."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any, get_args, get_origin

from hybridgen.recipe.typed import plain


def declared_in(hint: Any) -> Any:
    """The dataclass that a field of this type holds, or holds a list of; None for plain values."""
    inner = plain(hint)
    if get_origin(inner) is list:
        inner = get_args(inner)[0]
    return inner if is_dataclass(inner) else None
