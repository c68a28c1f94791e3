"""USP (arXiv 2405.07719) is Ulysses x ring under one flag: --usp 4x2 means --ulysses 4 --ring 2.

Legality, traffic, memory and the exchanges are those of its two parts, so it has no line in the registry.
"""

from __future__ import annotations

from hybridgen.plan.degrees import parse_pair


def parse(text: str) -> tuple[int, int]:
    """(ulysses, ring) from "4x2"."""
    return parse_pair("--usp", text, "ulysses x ring")
