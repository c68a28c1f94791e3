"""The tables of machines and settings in the docs, made from what is declared.

`python -m tests.support.machines` writes docs/machines.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from hybridgen.plan.settings import SETTINGS, Setting
from hybridgen.planner.hardware.cards import CARDS, Card
from hybridgen.planner.hardware.links import BUSES
from hybridgen.planner.hardware.rates import GENERATIONS, REACH
from hybridgen.planner.price.settings import SKIPPING
from tests.support.strategies import table

DOCUMENT = Path(__file__).parents[2] / "docs" / "machines.md"
HEAD = """\
# Machines and settings

This page is written by `python -m tests.support.machines` from what is declared. Do not edit it.

## Machines

`--hardware` takes these machines by name. The figures are those of the datasheets: rates are dense, in TFLOP/s, and
bf16 is summed in fp32. A dash means that the tensor cores do not support that type. The planner also needs the rates
that a pipeline reaches. They are "fitted" to published times. A generation without published times takes the rates of
the one that is named, and its predictions have a wider range. `hybridgen hardware NAME` shows every constant with its
origin.

"""
SETTINGS_HEAD = """
## Settings

`hybridgen plan` predicts the effect of these settings, and recipes and reports contain them. `run` refuses those that
it does not support yet, before anything loads. The planner never chooses a setting that changes the clip unless you
ask for it. Predicted times are for compiled blocks. Without `--compile`, `--explain 1` says how many seconds eager
blocks may add.

"""
PRICES_HEAD = """
## How much faster settings are, and where the figures come from

Attention is compared with the usual kernel on the same GPU, and matrix products with bf16. The gain of a step cache
comes from the times of whole runs. The planner interpolates linearly between published thresholds, and assumes no
further gain beyond the last one. Other models, sizes and numbers of steps skip more steps or fewer.

"""


def document() -> str:
    """The whole page."""
    machines = ("name", "GPU", "GB", "TB/s", "bf16", "fp8", "int8", "NVFP4", "joined by", "GPUs", "rates")
    settings = ("flag", "value", "what it does", "result", "`run`", "what it changes")
    return (
        HEAD
        + table(machines, [machine_row(card) for card in CARDS])
        + SETTINGS_HEAD
        + table(settings, [row for setting in SETTINGS.values() for row in setting_rows(setting)])
        + PRICES_HEAD
        + table(("setting", "on", "times as fast", "origin"), list(price_rows()))
    )


def machine_row(card: Card) -> list[str]:
    bus, like = BUSES[card.link], GENERATIONS[card.generation].like
    low = [f"{rate:g}" if rate else "-" for rate in card.low]
    rates = f"assumed as {like}" if like else "fitted"
    figures = [f"{card.memory:g}", f"{card.bandwidth:g}", f"{card.peak:g}", *low]
    return [f"`{card.name}`", card.title, *figures, bus.title, str(card.domain), rates]


def setting_rows(setting: Setting) -> Iterator[list[str]]:
    """One line for every value of a setting."""
    for choice in setting.choices:
        value = choice.name if choice.name != setting.name else setting.metavar or ""
        if choice.threshold is not None:
            value += f":{choice.threshold:g}"
        result = "exact" if choice.exact else "approximate"
        runs = "yes" if choice.runs else "refuses it"
        yield [f"`--{setting.name}`", f"`{value}`" if value else "", choice.words, result, runs, setting.changes]


def price_rows() -> Iterator[list[str]]:
    """One line for every published or assumed gain."""
    for choice in SETTINGS["attention"].choices:
        for name, generation in GENERATIONS.items():
            if (gain := generation.others.get(choice.name)) is not None:
                yield [f"`--attention {choice.name}`", name, f"{gain.value:.2f}", gain.origin]
    for kind, reach in REACH.items():
        gained = f"{reach.value:.0%} of the datasheet's gain"
        yield [f"`--weights {kind}`", "GPUs with such tensor cores", gained, reach.origin]
    for method, skipping in SKIPPING.items():
        for threshold, speed in skipping.faster:
            yield [f"`--cache {method}:{threshold:g}`", "", f"{speed:.2f}", f"published: {skipping.where}"]


def main() -> int:
    DOCUMENT.write_text(document(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
