"""The recipes that come with the package, by name. No torch."""

from __future__ import annotations

import difflib
from pathlib import Path

from hybridgen.errors import RequestError

FOLDER = Path(__file__).parent / "recipes"


def files() -> list[Path]:
    """Their files, by name."""
    return sorted(FOLDER.glob("*.yaml"))


def located(file: Path) -> Path:
    """The file, or the recipe of that name on the shelf. Raises RequestError (recipe-unreadable)."""
    if file.exists() or file.suffix or file.parent != Path():
        return file
    names = {path.stem: path for path in files()}
    if file.name not in names:
        close = difflib.get_close_matches(file.name, names, n=1, cutoff=0.4) or list(names)
        raise RequestError(
            "recipe-unreadable", f"{file} is no file and no recipe of this package; nearest: {', '.join(close)}"
        )
    return names[file.name]
