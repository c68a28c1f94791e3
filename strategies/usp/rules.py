"""USP (arXiv 2405.07719) is Ulysses x ring under one flag: --usp 4x2 means --ulysses 4 --ring 2.

Legality, traffic, memory and the exchanges are those of its two parts.
"""

from __future__ import annotations

from hybridgen.plan.axes import Shorthand
from hybridgen.strategies.strategy import Strategy

RULES = {
    "usp-parts": "--usp 4x2 is --ulysses 4 --ring 2; giving both could contradict itself.",
}

STRATEGY = Strategy(
    "usp",
    rules=RULES,
    shorthands=(
        Shorthand(
            "usp",
            "Ulysses x ring under one flag.",
            listed=40,
            metavar="UxR",
            sets=("ulysses", "ring"),
            peers={"--sp-degree": ("SGLang", "--usp")},
        ),
    ),
)
