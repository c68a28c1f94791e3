"""The degree of every parallel axis. Pure arithmetic, no torch, no process group."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields

from hybridgen.errors import RequestError, Violation

AXES = ("cfg", "pipefusion", "tp", "ring", "row", "col", "ulysses")
"""Axes of the mesh in their default order, slowest first."""

SEQUENCE_AXES = ("ring", "row", "col", "ulysses")
"""Axes that share the token sequence, most significant digit of the sequence index first."""


@dataclass(frozen=True)
class Degrees:
    """How many ranks each strategy uses. The VAE's width is laid over the other ranks and multiplies nothing."""

    cfg: int = 1
    pipefusion: int = 1
    tp: int = 1
    ring: int = 1
    attn2d: tuple[int, int] = (1, 1)
    ulysses: int = 1
    vae: int = 1

    @property
    def cp(self) -> int:
        """Ranks among which K/V is exchanged: ring, or rows x cols of attention2d."""
        return self.ring * self.attn2d[0] * self.attn2d[1]

    @property
    def sequence(self) -> int:
        """Ranks that share the token sequence."""
        return self.cp * self.ulysses

    @property
    def world(self) -> int:
        return self.cfg * self.pipefusion * self.tp * self.sequence

    def size(self, axis: str) -> int:
        """Size of a mesh axis (one of AXES)."""
        if axis in ("row", "col"):
            return self.attn2d[("row", "col").index(axis)]
        return int(getattr(self, axis))

    def named(self) -> dict[str, str]:
        """The degrees that are not 1, as flag name and value: {"cfg": "2", "attn2d": "3x3"}."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        text = {name: "x".join(map(str, v)) if isinstance(v, tuple) else str(v) for name, v in values.items()}
        return {name: v for name, v in text.items() if v not in ("1", "1x1")}

    def instead_of(self, other: Degrees) -> dict[str, str]:
        """The same where the other's flags were given: those that are 1 here are set to that."""
        ones = {name: "1x1" if name == "attn2d" else "1" for name in other.named()}
        return {**ones, **self.named()}

    def flags(self) -> str:
        """The same as command-line flags: "--cfg 2 --attn2d 3x3"."""
        return " ".join(f"--{name} {value}" for name, value in self.named().items())

    def __str__(self) -> str:
        """Short name of the plan: "cfg2 ulysses4 attn2d3x3 vae8"; "one rank" when nothing is split."""
        order = ("cfg", "pipefusion", "tp", "ulysses", "ring", "attn2d", "vae")
        named = self.named()
        return " ".join(f"{name}{named[name]}" for name in order if name in named) or "one rank"


def parse_pair(flag: str, text: str, meaning: str, example: str = "3x2", retry: str = "") -> tuple[int, int]:
    """Read "3x3" as (3, 3). Raises RequestError naming the flag when the text is not two whole numbers above 0, of at
    most 9 digits.

    `retry` is the flag, without dashes, for which the example will always do.
    """
    match = re.fullmatch(r"\s*(\d{1,9})\s*[xX*]\s*(\d{1,9})\s*", text)
    pair = (int(match[1]), int(match[2])) if match else (0, 0)
    if min(pair) < 1:
        message = f"{flag} {text} is not {meaning}; write it as in {flag} {example}"
        raise RequestError.told("degree-format", message, tries=[{retry: example}] if retry else [])
    return pair


def divisors(n: int) -> list[int]:
    """All positive divisors of n, ascending."""
    low = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return sorted({*low, *(n // d for d in low)})


def nearest(value: int, legal: Iterable[int]) -> list[int]:
    """The legal values next to `value`: the one below and the one above, as far as they exist."""
    ordered = sorted(legal)
    return [x for x in ordered if x <= value][-1:] + [x for x in ordered if x > value][:1]


def not_legal(rule: str, flag: str, value: int, complaint: str, legal: Iterable[int]) -> Violation:
    """A degree that breaks a rule: "--ulysses 6 does not divide the 40 heads; nearest: 5, 8"."""
    close = nearest(value, legal)
    changes = tuple({flag: str(x)} for x in sorted(close, key=lambda x: (abs(x - value), x)))
    return Violation(rule, f"--{flag} {value} {complaint}; nearest: {', '.join(map(str, close))}", changes)
