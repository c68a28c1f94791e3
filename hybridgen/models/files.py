"""The files of a checkpoint folder in diffusers layout: JSON, and the headers of safetensors. No torch."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridgen.errors import RequestError

Config = dict[str, Any]


@dataclass(frozen=True)
class Folder:
    """A checkpoint folder."""

    path: Path

    def json(self, name: str) -> Config:
        """Read a JSON file of the folder. Raises RequestError (unreadable-model)."""
        try:
            content = json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            problem = f"{name} cannot be read ({type(error).__name__})"
            nearest = "a folder in diffusers layout, with model_index.json"
            raise RequestError("unreadable-model", "model", self.path, problem, nearest) from error
        if not isinstance(content, dict):
            raise RequestError("unreadable-model", "model", self.path, f"{name} has no keys")
        return content

    def params(self, component: str) -> int:
        """Parameters in the safetensors files of a component, from their headers."""
        total = 0
        for path in sorted((self.path / component).glob("*.safetensors")):
            with path.open("rb") as file:
                (length,) = struct.unpack("<Q", file.read(8))
                header = json.loads(file.read(length))
            total += sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
        return total
