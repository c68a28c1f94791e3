"""USP (arXiv 2405.07719) is Ulysses x ring under one flag: --usp 4x2 means --ulysses 4 --ring 2.

Legality, traffic and memory are those of its two parts; this module only says how the flag is read.
"""

from __future__ import annotations

from collections.abc import Iterator

from hybridgen.degrees import parse_pair
from hybridgen.errors import Violation
from hybridgen.plan import Plan
from hybridgen.traffic import Message

RULES: dict[str, str] = {}


def parse(text: str) -> tuple[int, int]:
    """(ulysses, ring) from "4x2"."""
    return parse_pair("--usp", text, "ulysses x ring")


def violations(plan: Plan) -> Iterator[Violation]:
    yield from ()


def traffic(plan: Plan, rank: int) -> Iterator[Message]:
    yield from ()


def memory(plan: Plan, rank: int) -> dict[str, int]:
    return {}
