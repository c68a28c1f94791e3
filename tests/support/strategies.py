"""The tables of strategies and axes in the docs, made from what the strategies declare.

`python -m tests.support.strategies` writes docs/strategies.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from hybridgen.plan.axes import Axis, Degree, Setting
from hybridgen.strategies import registry
from hybridgen.strategies.registry import Degrees
from hybridgen.strategies.strategy import Strategy

DOCUMENT = Path(__file__).parents[2] / "docs" / "strategies.md"
ENGINES = {"xdit": "xDiT", "trtllm": "TensorRT-LLM"}
DIVIDES = {
    "branches": "guidance branches",
    "blocks": "blocks of the transformer",
    "weights": "weights",
    "keys": "tokens; K/V is exchanged",
    "heads": "tokens; they are traded for heads",
    "picture": "the picture, at decode and encode",
    "nothing": "nothing",
}
HEAD = """\
# Strategies and axes

Written by `python -m tests.support.strategies` from what the strategies' folders declare; do not edit.

## Strategies

In the order in which they are applied to a loaded model. An engine without a name for a degree does not have it, and
`recipes export` refuses a plan that uses it.

"""
AXES_HEAD = """
## Axes of the mesh

The mesh is the ranks as a grid, with one of these axes for each strategy (attention2d has two). In their default order,
slowest first; `--order` sets another one. The last ones are laid over the mesh and multiply nothing. Halo rows are the
rows of a neighbour's strip that a convolution needs.

"""


def document() -> str:
    """The whole page."""
    strategies = [row for strategy in registry.STRATEGIES for row in rows_of(strategy)]
    flags = {axis.name: degree for degree in registry.DEGREES for axis in degree.axes}
    axes = [axis_row(axis, flags[axis.name]) for axis in Degrees.axes.values()]
    return (
        HEAD
        + table(("strategy", "flag", "what it does", "result", *ENGINES.values()), strategies)
        + AXES_HEAD
        + table(("axis", "flag", "each rank has its part of", "ranks exchange", "why it stands there"), axes)
    )


def rows_of(strategy: Strategy) -> Iterator[list[str]]:
    """One line for everything that can be set of a strategy."""
    for degree in strategy.degrees:
        result = "exact" if degree.exact is None else "approximate"
        names = [f"`{degree.engines[engine]}`" if engine in degree.engines else "" for engine in ENGINES]
        yield [strategy.name, flag(degree), degree.help, result, *names]
    for setting in (*strategy.options, *strategy.shorthands):
        yield [strategy.name, flag(setting), setting.help, "", *("" for _ in ENGINES)]


def axis_row(axis: Axis, degree: Degree) -> list[str]:
    return [f"`{axis.name}`", f"`--{degree.name}`", DIVIDES[axis.divides], axis.exchanges, axis.why]


def flag(setting: Setting) -> str:
    return f"`--{setting.name} {setting.metavar}`"


def table(head: Iterable[str], rows: Iterable[list[str]]) -> str:
    lines = [list(head), *rows]
    lines.insert(1, ["---"] * len(lines[0]))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> int:
    DOCUMENT.write_text(document(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
