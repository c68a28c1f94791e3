"""Checkpoints with changed files: what is stored is rewritten without torch."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hybridgen.models.catalogue import DEMO_FOLDER

Tensors = dict[str, dict[str, Any]]
"""The header of a safetensors file, with the bytes of each tensor as its "data"."""


def copy_of(folder: Path, target: Path) -> Path:
    """A copy of a checkpoint, the demo's for example, in a folder that may be there."""
    shutil.copytree(folder, target, dirs_exist_ok=True)
    return target


def demo(target: Path) -> Path:
    """A copy of the demo's checkpoint."""
    return copy_of(DEMO_FOLDER, target)


def change_json(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def weights_of(folder: Path, component: str) -> Path:
    """The one file with a component's weights."""
    (found,) = (folder / component).glob("*.safetensors")
    return found


def read(path: Path) -> Tensors:
    """The tensors of a file with their bytes."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    header.pop("__metadata__", None)
    for entry in header.values():
        start, stop = entry.pop("data_offsets")
        entry["data"] = data[start:stop]
    return header  # type: ignore[no-any-return]


def write(path: Path, tensors: Tensors) -> None:
    """Write tensors one after the other."""
    header, data, end = {"__metadata__": {"format": "pt"}}, [], 0
    for name, entry in tensors.items():
        size = len(entry["data"])
        header[name] = {"dtype": entry["dtype"], "shape": entry["shape"], "data_offsets": [end, end + size]}  # type: ignore[dict-item]
        data.append(entry["data"])
        end += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))


@contextmanager
def changed(path: Path) -> Iterator[Tensors]:
    """The tensors of a file, to be changed and written again."""
    tensors = read(path)
    yield tensors
    write(path, tensors)
