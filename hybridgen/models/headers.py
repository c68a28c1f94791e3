"""The headers of safetensors files: names, types and shapes of what is stored, without reading it. No torch."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any, NamedTuple

LARGEST_HEADER = 100_000_000
"""Bytes of a header; safetensors itself reads no longer ones."""
BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("BOOL", "I8", "U8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
"""Bits of a number, by the name of its type in safetensors."""
POINTER = b"version https://git-lfs"
"""How a file begins that stands for one which Git LFS has not fetched."""


class Stored(NamedTuple):
    """A tensor in a file."""

    dtype: str
    """Type as safetensors names it, such as "BF16"."""
    shape: tuple[int, ...]


class Header(NamedTuple):
    """What the header of a file says."""

    tensors: dict[str, Stored]
    about: dict[str, str]
    """The file's own metadata."""


class Unreadable(Exception):
    """What is wrong with a file, as a clause that follows its name."""


class Missing(Unreadable):
    """There is no such file."""


def read_header(path: Path) -> Header:
    """The header of a file, after checking that it holds all their bytes. Raises Unreadable."""
    size = check_fetched(path)
    with path.open("rb") as file:
        start = file.read(8)
        if len(start) < 8:
            raise Unreadable(f"is not a safetensors file: it has {size} bytes")
        (length,) = struct.unpack("<Q", start[:8])
        if length > LARGEST_HEADER:
            raise Unreadable(f"is not a safetensors file: its header would have {length} bytes")
        if length > size - 8:
            raise Unreadable(f"is cut off: its header alone has {length} bytes, and the file {size}")
        file.seek(8)
        text = file.read(length)
    found, end = _parsed(text)
    if size - 8 - length != end:
        what = "is cut off" if size - 8 - length < end else "is too long"
        raise Unreadable(f"{what}: it has {size} bytes, and its header describes {8 + length + end}")
    return found


def regular_size(path: Path) -> int:
    """Bytes of a regular file, links followed. Raises Unreadable for what is none."""
    try:
        found = path.stat()
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise Missing("is missing") from error
        raise Unreadable(f"{error.strerror}") from error
    if not path.is_file():
        raise Unreadable("is not a regular file")
    return found.st_size


def check_fetched(path: Path) -> int:
    """Bytes of a regular file. Raises Unreadable for what is none, or what Git LFS has not fetched."""
    size = regular_size(path)
    with path.open("rb") as file:
        if file.read(len(POINTER)) == POINTER:
            raise Unreadable("is a pointer of Git LFS, and the file itself was not fetched: git lfs pull")
    return size


def _parsed(text: bytes) -> tuple[Header, int]:
    """A header, and how many bytes its tensors take."""
    try:
        content: Any = json.loads(text)
    except (ValueError, RecursionError, MemoryError) as error:
        raise Unreadable(f"has a header that is not JSON ({type(error).__name__})") from error
    if not isinstance(content, dict):
        raise Unreadable("has a header that is not a JSON object")
    about = content.pop("__metadata__", {})
    if not isinstance(about, dict) or not all(isinstance(value, str) for value in about.values()):
        raise Unreadable("has a header whose __metadata__ holds other things than text")
    places: list[tuple[int, int]] = []
    tensors = {name: _tensor(name, entry, places) for name, entry in content.items()}
    end = 0
    for start, stop in sorted(places):
        if start != end:
            raise Unreadable("has a header whose tensors overlap, or leave gaps")
        end = stop
    return Header(tensors, about), end


def _tensor(name: str, entry: Any, places: list[tuple[int, int]]) -> Stored:
    """One entry of a header; its place in the file is added to `places`."""
    try:
        dtype, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
        numbers = [*shape, start, stop]
        sound = isinstance(dtype, str) and all(type(n) is int and 0 <= n < 2**63 for n in numbers) and len(shape) <= 16
    except (KeyError, TypeError, ValueError):
        sound = False
    if not sound:
        raise Unreadable(f"has a header that does not say where {ascii(name)[:80]} is")
    if dtype in BITS and stop - start != -(-math.prod(shape) * BITS[dtype] // 8):
        raise Unreadable(
            f"has a header that gives {ascii(name)[:80]} {stop - start} bytes, and a shape that needs others"
        )
    places.append((start, stop))
    return Stored(dtype, tuple(shape))
