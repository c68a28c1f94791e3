"""Whole numbers that are legal: pairs, divisors, and those next to one that is not. No torch."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import lru_cache

from hybridgen.errors import RequestError


def parse_pair(flag: str, text: str, meaning: str, nearest: str = "") -> tuple[int, int]:
    """Read "3x3" as (3, 3).

    `nearest` is a pair that the flag always takes, if there is one. Raises RequestError (degree-format) where the text
    is not two whole numbers above 0, of at most 9 digits.
    """
    match = re.fullmatch(r"\s*(\d{1,9})\s*[xX*]\s*(\d{1,9})\s*", text)
    pair = (int(match[1]), int(match[2])) if match else (0, 0)
    if min(pair) < 1:
        example = "" if nearest else ", as in 3x2"
        raise RequestError("degree-format", flag, text, f"is not {meaning}{example}", [nearest] if nearest else [])
    return pair


def divisors(n: int) -> list[int]:
    """All positive divisors of n, ascending."""
    return list(_divisors(n))


@lru_cache(maxsize=1024)
def _divisors(n: int) -> tuple[int, ...]:
    low = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return tuple(sorted({*low, *(n // d for d in low)}))


def nearest(value: int, legal: Iterable[int]) -> list[int]:
    """The legal values next to `value`: the one below and the one above, as far as they exist."""
    ordered = sorted(legal)
    return [x for x in ordered if x <= value][-1:] + [x for x in ordered if x > value][:1]


def not_legal(rule: str, flag: str, value: int, problem: str, legal: Iterable[int]) -> RequestError:
    """A number that breaks a rule, with the legal ones next to it: "--ulysses 6: does not ...; nearest: 5, 8"."""
    close = sorted(nearest(value, legal), key=lambda x: (abs(x - value), x))
    return RequestError(rule, flag, value, problem, close)
