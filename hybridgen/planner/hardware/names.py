"""Machines by what a user or the driver calls them, and what a name that is not known may mean. No torch.

A card is never taken for one with more memory or another chip: what fits into its memory may not fit into the one that
is meant. So a variant that has no entry of its own is not known, whatever it shares with one that has.
"""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import NamedTuple

from hybridgen.errors import RequestError, did_you_mean
from hybridgen.planner.hardware.cards import CARDS
from hybridgen.planner.hardware.constants import Hardware
from hybridgen.planner.hardware.known import ALIASES, MACHINES

MAKERS = ("nvidia", "amd")
NEUTRAL = re.compile(r"sxm\d?|hbm\d?e?|gpu|nvidia|amd")
"""Words that tell no card from another of its name."""
MOST = 2
"""Most machines that are proposed for one name."""


def _bare(name: str) -> str:
    """A name in small letters without its maker and without what separates its parts."""
    return "".join(word for word in re.split(r"[\W_]+", name.lower()) if word not in MAKERS)


NAMES = {_bare(name): machine for name, machine in {**{n: n for n in MACHINES}, **ALIASES}.items()}
"""Names and aliases without separators, and the machine of each."""
DRIVERS = {_bare(driver): card.name for card in CARDS for driver in card.drivers}


def by_name(name: str) -> Hardware | None:
    """The machine with this name or alias, or of the card that a driver calls so, however its parts are separated."""
    machine = NAMES.get(_bare(name)) or DRIVERS.get(_bare(name))
    return MACHINES[machine] if machine else None


def machine_of(device: str) -> Hardware:
    """The machine with this device: "cpu", or what the driver calls a GPU. Raises RequestError (unknown-hardware)."""
    name = device if device == "cpu" else DRIVERS.get(_bare(device))
    if name is not None:
        return MACHINES[name]
    problem = f"{device} is not a machine that the planner knows"
    raise RequestError("unknown-hardware", "", None, problem, "--hardware NAME or FILE.yaml, or the degrees")


class Model(NamedTuple):
    """A name taken apart."""

    letters: str
    """What stands before the first number, sorted, so that swapped letters are the same."""
    number: str
    rest: frozenset[str]
    """Words after the number: variants of the model."""
    memory: float
    """GB that the name says; infinite where it says none."""


def _model(name: str) -> Model:
    """A name taken apart: "a100-pcie-40gb" is (a, 100, {pcie}, 40). A number after the model's is its memory."""
    words = re.findall(r"[a-z]+|\d+", NEUTRAL.sub(" ", name.lower()))
    place = next((i for i, word in enumerate(words) if word.isdigit()), len(words))
    letters, (number, *tail) = "".join(words[:place]), words[place:] or [""]
    sizes = [word for word in tail if word.isdigit()]
    units = [after for word, after in pairwise(tail) if word.isdigit() and re.fullmatch("g.?", after)]
    rest = frozenset(word for word in tail if word not in (*sizes, *units))
    return Model("".join(sorted(letters)), number, rest, min(map(float, sizes), default=math.inf))


def close(name: str) -> list[str]:
    """Names of machines that may be meant: the same model and variant, and no more memory than the name says.

    Where it says none, the smallest of the model.
    """
    given = _model(name)
    if not given.number:
        return [known for known in did_you_mean(name.lower(), MACHINES, MOST) if not re.search(r"\d", known)]
    sizes = {machine: MACHINES[machine].memory.value / 1e9 for known, machine in _spelled() if _means(given, known)}
    least = min(sizes.values(), default=0)
    most = least if math.isinf(given.memory) else given.memory
    fitting = [machine for machine, size in sizes.items() if size <= most]
    return did_you_mean(name.lower(), fitting, MOST, 0.0)


def _spelled() -> list[tuple[str, str]]:
    """Every name and alias with its machine."""
    return [*((name, name) for name in MACHINES), *ALIASES.items()]


def _means(given: Model, name: str) -> bool:
    """Whether a name may be meant for this one: the same letters and variant, and a number with zeros too many."""
    known = _model(name)
    extra = given.number.removeprefix(known.number) if given.number.startswith(known.number) else None
    is_number = bool(known.number) and extra is not None and (not extra or (len(extra) > 1 and not extra.strip("0")))
    return is_number and given.letters == known.letters and given.rest == known.rest
