"""Checkpoints that are broken at random: a key, a header, some bytes, or a whole file."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 3, 1.5, 1e308, float("nan"), float("inf"), 10**12, 10**30, 10**400),
    *("", "4", "\x1b[31m\n::stop", "a" * 10_000, [], [1], [[]], ["a"] * 1000, {}, {"a": 1}, [None, None]),
    *(["os", "system"], ["diffusers", "UNet2DModel"], 5000, 1e-30, -(10**9)),
)
TEXTS = (b"", b"[", b"[" * 200_000, b'{"a":' * 100_000, b"null", b"\xff\xfe", b'{"a":1' + b"0" * 6000 + b"}", b'"x"')
LENGTHS = (0, 1, 2**45, 2**63, 2**64 - 1, 10**8)
"""Lengths of headers that are none."""
ELSEWHERE = ("/nonexistent", "/dev/zero", "/dev/null", "/etc/passwd", "/")


def mutate(folder: Path, draw: Random) -> str:
    """Break one thing in a checkpoint, and say what."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    plain = [path for path in files if path.suffix == ".json" and path.name != "tokenizer.json"]
    weights = [path for path in files if path.suffix == ".safetensors"]
    change, among = draw.choice(
        [*4 * [(_key, plain)], *2 * [(_header, weights)], *((f, files) for f in WHOLE), (_text, plain)]
    )
    path: Path = draw.choice(among)
    return f"{change.__name__} {path.relative_to(folder)} {change(path, draw)}"


def _places(content: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to every value in JSON."""
    inner = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    return [before, *(place for key, value in inner for place in _places(value, (*before, key)))]


def _changed(content: Any, draw: Random) -> tuple[str, str]:
    """JSON with one value changed, as text, and what was changed."""
    place, value = draw.choice(_places(content)), draw.choice(VALUES)
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    if place:
        inner[place[-1]] = value
    text = json.dumps(content if place else value)
    return text, f"{place} = {str(value)[:20]!r}"


def _key(path: Path, draw: Random) -> str:
    text, said = _changed(json.loads(path.read_text()), draw)
    path.write_text(text)
    return said


def _header(path: Path, draw: Random) -> str:
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    if draw.random() < 0.2:
        path.write_bytes(struct.pack("<Q", draw.choice(LENGTHS)) + content[8:])
        return "length"
    text, said = _changed(json.loads(content[8 : 8 + length]), draw)
    path.write_bytes(struct.pack("<Q", len(text)) + text.encode() + content[8 + length :])
    return said


def _text(path: Path, draw: Random) -> str:
    path.write_bytes(draw.choice(TEXTS))
    return ""


def _bytes(path: Path, draw: Random) -> str:
    content = bytearray(path.read_bytes())
    for _ in range(draw.randint(1, 20)):
        content[draw.randrange(min(len(content), draw.choice((8, 100, 5000))))] = draw.randrange(256)
    path.write_bytes(content)
    return ""


def _cut(path: Path, draw: Random) -> str:
    os.truncate(path, draw.randrange(path.stat().st_size + 1))
    return ""


def _other(path: Path, draw: Random) -> str:
    """Nothing, a pipe, a folder or a link in a file's place."""
    path.unlink()
    kind = draw.choice(("nothing", "pipe", "folder", "link"))
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(draw.choice((path.name, *ELSEWHERE)))
    return kind


WHOLE: tuple[Callable[[Path, Random], str], ...] = (_bytes, _cut, _other)
