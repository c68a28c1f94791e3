"""Hybrid parallel video generation: compose strategies, plan them, run them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybridgen.api import generate as generate

__all__ = ["generate"]


def __getattr__(name: str) -> Any:
    """generate() is imported when it is used, so that `import hybridgen` stays light."""
    if name == "generate":
        from hybridgen.api import generate

        return generate
    if name == "__version__":
        from importlib.metadata import version

        return version("hybridgen")
    raise AttributeError(name)
