"""The files of a checkpoint folder in diffusers layout: JSON, and the headers of safetensors. No torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridgen.errors import RequestError
from hybridgen.models import headers
from hybridgen.models.headers import Missing, Stored, Unreadable
from hybridgen.models.keys import Table, checked

Config = dict[str, Any]
LARGEST_JSON = 16_000_000
"""Bytes of a JSON file that is read; the index of a large model has 100,000."""
STEM = {"diffusers": "diffusion_pytorch_model", "transformers": "model"}
"""How the files of weights are called, by library."""
STEMS = tuple(STEM.values())
OTHER_WEIGHTS = {".bin": "a pickle", ".pt": "a pickle", ".pth": "a pickle", ".ckpt": "a pickle", ".gguf": "GGUF"}
"""Weights that are not read, by the ending of their files."""


@dataclass(frozen=True)
class Folder:
    """A checkpoint folder."""

    path: Path

    def json(self, name: str, table: Table | None = None) -> Config:
        """Read a JSON file of the folder, and check its keys. Raises RequestError (unreadable-model)."""
        try:
            size = headers.check_fetched(self.path / name)
            if size > LARGEST_JSON:
                raise Unreadable(f"is too large ({size} bytes)")
            content = json.loads((self.path / name).read_bytes())
        except Unreadable as fault:
            raise self.refused(f"{name} {fault}", "a folder in diffusers layout, with model_index.json") from fault
        except (OSError, ValueError, RecursionError, MemoryError) as error:
            nearest = "a folder in diffusers layout, with model_index.json"
            raise self.refused(f"{name} cannot be read ({type(error).__name__})", nearest) from error
        if not isinstance(content, dict):
            raise self.refused(f"{name} has no keys")
        return content if table is None else checked(content, table, name, self.path)

    def refused(self, problem: str, nearest: str = "", rule: str = "unreadable-model") -> RequestError:
        """The error that refuses this checkpoint."""
        return RequestError(rule, "model", self.path, problem, nearest)

    def params(self, component: str) -> int:
        """Parameters of a component, from the headers of its files."""
        return sum(math.prod(one.shape) for one in self.tensors(component).values())

    def tensors(self, component: str, stems: tuple[str, ...] = STEMS) -> dict[str, Stored]:
        """The tensors of a component by name, from the headers of the files that its loader reads.

        stems: what the files may be called.

        Raises RequestError: unreadable-model.
        """
        found: dict[str, Stored] = {}
        for file, names in self.weight_files(component, stems).items():
            try:
                stored = headers.read_header(self.path / component / file).tensors
            except (Unreadable, OSError) as fault:
                raise self.refused(f"{component}/{file} {fault}") from fault
            for name in stored if names is None else names:
                if name not in stored:
                    raise self.refused(f"{component}/{file} lacks {name!a}, which the index says is in it")
                found[name] = stored[name]
        return found

    def check_same(self, pairs: Mapping[str, tuple[object, object]]) -> None:
        """Raise RequestError (unreadable-model) where two components contradict each other.

        pairs: what is compared, and its two values.
        """
        for what, (one, other) in pairs.items():
            if one != other:
                raise self.refused(f"its components do not fit together: {what} are {one} and {other}")

    def weight_files(self, component: str, stems: tuple[str, ...] = STEMS) -> dict[str, set[str] | None]:
        """Names of a component's files of weights, each with the tensors that are read of it; None: all.

        diffusers goes by an index before it looks for a single file, transformers the other way round.
        """
        folder = self.path / component
        for stem in stems:
            single, index = f"{stem}.safetensors", f"{stem}.safetensors.index.json"
            order = (index, single) if stem == STEMS[0] else (single, index)
            for name in order:
                if (folder / name).exists() or (folder / name).is_symlink():
                    return self._indexed(component, name) if name == index else {single: None}
        raise self._no_weights(component, stems) from Missing()

    def _indexed(self, component: str, index: str) -> dict[str, set[str] | None]:
        """The files that an index names."""
        name = f"{component}/{index}"
        where = self.json(name).get("weight_map")
        if not isinstance(where, dict) or not where:
            raise self.refused(f"{name} has no weight_map")
        found: dict[str, set[str] | None] = {}
        for tensor, file in where.items():
            if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
                raise self.refused(f"{name} names {ascii(file)[:80]}, which is not a safetensors file beside it")
            known = found.setdefault(file, set())
            assert known is not None
            known.add(tensor)
        return found

    def _no_weights(self, component: str, stems: tuple[str, ...]) -> RequestError:
        """The error of a component without files of weights that are read, saying which others are there."""
        try:
            there = sorted(path.name for path in (self.path / component).iterdir())
        except OSError:
            return self.refused(f"{component} is missing, which model_index.json names")
        for ending, form in OTHER_WEIGHTS.items():
            for name in there:
                if name.endswith(ending):
                    problem = f"{component} has its weights as {form} only ({name}), and safetensors are read"
                    return self.refused(problem, "the checkpoint saved as safetensors")
        for name in there:
            if name.endswith(".safetensors"):
                problem = f"{component} has no {' or '.join(f'{stem}.safetensors' for stem in stems)}, only {name}"
                return self.refused(problem, "the files without a variant in their names")
        return self.refused(f"{component} has no files of weights")
