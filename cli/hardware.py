"""hybridgen hardware: the machines known by name, and where each constant comes from."""

from __future__ import annotations

import json
from typing import Annotated, Any, Optional

import typer

from hybridgen.cli import text
from hybridgen.cli.options import offered
from hybridgen.cli.verb import Verb
from hybridgen.planner.hardware.constants import Hardware
from hybridgen.planner.hardware.known import ALIASES, DEFAULT, MACHINES
from hybridgen.planner.hardware.lookup import find

EXAMPLES = "hybridgen hardware\n\nhybridgen hardware h100"

app = typer.Typer()


@app.command("hardware", cls=Verb, epilog=EXAMPLES)
def hardware(
    name: Annotated[
        Optional[str],
        typer.Argument(
            help="A machine, or FILE.yaml: every constant with its origin.",
            metavar="NAME",
            autocompletion=offered(lambda: MACHINES),
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """List the machines that plan --hardware knows, or every constant of one with its origin."""
    found = list(MACHINES.values()) if name is None else [find(name)]
    if as_json:
        text.answer(json.dumps([about(one) for one in found], indent=2))
    elif name is None:
        head = ("name", "GPU", "memory", "attention", "bandwidth", "joined by", "GPUs", "rates", "also")
        numbers, drop = ("memory", "attention", "bandwidth", "GPUs"), ("also", "rates", "bandwidth", "GPUs")
        text.answer(*text.fitting(head, [_row(one) for one in found], drop, numbers))
        text.say("", *text.paragraph("", "another machine: hybridgen calibrate there, or a file with base: NAME", 0))
    else:
        text.answer(*constants(found[0]))


def about(machine: Hardware) -> dict[str, Any]:
    """A machine as data: constants in SI units, each with its origin."""
    return {
        "name": machine.name,
        "title": machine.title,
        "aliases": [alias for alias, name in ALIASES.items() if name == machine.name],
        "default": machine.name == DEFAULT,
        "inside": machine.inside.name,
        "outside": machine.outside.name,
        "domain": machine.domain,
        "per_node": machine.per_node,
        "constants": {name: {"value": one.value, "origin": one.origin} for name, one in machine.constants()},
    }


def constants(machine: Hardware) -> list[str]:
    """The lines of a machine's constants."""
    lines = [f"constants of {machine.name}, SI units, and where they come from"]
    rows = ((name, f"{constant.value:.4g}", constant.origin) for name, constant in machine.constants())
    return lines + [
        line for name, value, origin in rows for line in text.paragraph(f"{name:<28}  {value:<10}", origin, 42)
    ]


def _row(machine: Hardware) -> list[str]:
    return [
        machine.name + " (default)" * (machine.name == DEFAULT),
        machine.title,
        f"{machine.memory.value / 1e9:.0f} GB" if machine.memory.value else "-",
        f"{text.short(machine.attention.value / 1e12)} TFLOP/s",
        f"{text.short(machine.bandwidth.value / 1e12)} TB/s",
        machine.inside.name.partition(",")[0],
        str(machine.domain),
        machine.attention.origin.split()[0].rstrip(":"),
        ", ".join(alias for alias, name in ALIASES.items() if name == machine.name),
    ]
