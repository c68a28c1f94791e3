"""Hybrid parallel video generation: compose strategies, plan them, run them.

    hybridgen.generate(prompt, out, ...)   make a clip; returns a Report
    hybridgen.Engine(...)                  ranks that load a model once and make many clips
    hybridgen.plan(gpus, ...)              rank the ways to spread a clip over GPUs; returns a Recommendation
    hybridgen.Report                       what a run did: its clip, times, traffic, memory
    hybridgen.Recommendation               ranked plans, the recommended one first
    hybridgen.Recipe                       everything one run needs, as one typed object
    hybridgen.RequestError                 raised for a request that cannot be served, before anything starts
    hybridgen.RunFailed                    raised for a run that started and did not finish

`import hybridgen` alone loads none of them: each is imported when it is first used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybridgen.api.python import generate as generate
    from hybridgen.api.python import plan as plan
    from hybridgen.api.session import Engine as Engine
    from hybridgen.engine.report import Report as Report
    from hybridgen.errors import RequestError as RequestError
    from hybridgen.errors import RunFailed as RunFailed
    from hybridgen.planner.choose.ask import Recommendation as Recommendation
    from hybridgen.recipe.fields import Recipe as Recipe

    __version__: str

_WHERE = {
    "Engine": "hybridgen.api.session",
    "generate": "hybridgen.api.python",
    "plan": "hybridgen.api.python",
    "Recipe": "hybridgen.recipe.fields",
    "Recommendation": "hybridgen.planner.choose.ask",
    "Report": "hybridgen.engine.report",
    "RequestError": "hybridgen.errors",
    "RunFailed": "hybridgen.errors",
}
__all__ = ["Engine", "Recipe", "Recommendation", "Report", "RequestError", "RunFailed", "generate", "plan"]


if not TYPE_CHECKING:  # so that type checkers know a name that is not offered

    def __getattr__(name: str) -> Any:
        """A public name, imported when it is first used."""
        if name in _WHERE:
            return getattr(import_module(_WHERE[name]), name)
        if name == "__version__":
            from importlib.metadata import version

            return version("hybridgen")
        raise AttributeError(f"module 'hybridgen' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


class _Package(ModuleType):
    """This package, whose attribute `plan` is the function although hybridgen.plan is a package within it, too.

    Importing hybridgen.plan.anything sets the attribute to that package, which is ignored here; the import itself
    goes by sys.modules and works as always.
    """

    @property
    def plan(self) -> Any:
        return import_module(_WHERE["plan"]).plan

    @plan.setter
    def plan(self, module: ModuleType) -> None:
        pass


sys.modules[__name__].__class__ = _Package
