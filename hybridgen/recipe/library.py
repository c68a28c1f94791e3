"""The recipes that come with the package, by name. No torch."""

from __future__ import annotations

import difflib
from pathlib import Path

from hybridgen.errors import RequestError

FOLDER = Path(__file__).parent.parent / "recipes"


def files() -> list[Path]:
    """Their files, by name."""
    return sorted(FOLDER.glob("*.yaml"))


def located(file: Path) -> Path:
    """The file, or the recipe of that name on the shelf. Raises RequestError (recipe-unreadable)."""
    if file.exists() or file.suffix in (".yaml", ".yml") or file.parent != Path():
        return file
    names = {path.stem: path for path in files()}
    if file.name in names:
        return names[file.name]
    close = [name for name in names if file.name in name] or difflib.get_close_matches(file.name, names, cutoff=0.4)
    hint = f"nearest: {', '.join(close[:3])}" if close else "hybridgen recipes list shows them"
    raise RequestError.told(
        "recipe-unreadable",
        f"{file} is no file and no recipe of this package; {hint}",
        tries=["hybridgen recipes list"],
    )
