"""The recipes that come with the package, by name. No torch."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from hybridgen.errors import RequestError, did_you_mean

FOLDER = Path(__file__).parent.parent / "recipes"
HERE = Path("recipes")
"""The folder of a project's own recipes."""
ENDINGS = (".yaml", ".yml")


def files() -> list[Path]:
    """The files of all recipes of the package, sorted by name."""
    return sorted(FOLDER.glob("*.yaml"))


def names() -> list[str]:
    """The names of the recipes of the package."""
    return [path.stem for path in files()]


def located_all(given: Iterable[Path] | None) -> list[Path]:
    """The recipe files that are given by path or name, those of a folder sorted. Raises RequestError."""
    found = list[Path]()
    for path in given or ():
        is_folder = os.path.isdir(path)  # noqa: PTH112 - pathlib raises for a name that is too long
        inside = _inside(path) if is_folder else [located(path)]
        if not inside and path != HERE:
            problem = f"holds no file that ends in {' or '.join(ENDINGS)}"
            raise RequestError("recipe-unreadable", "", path, problem)
        found += inside
    return found


def _inside(folder: Path) -> list[Path]:
    """The files of a folder and those in it that end as recipes do, sorted; hidden ones are left out."""
    found = [path for path in folder.rglob("*") if path.suffix in ENDINGS]
    return sorted(path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts))


def located(file: Path) -> Path:
    """The path of a recipe file, or of the package's recipe of that name. Raises RequestError (recipe-unreadable)."""
    is_there = os.path.exists(file)  # noqa: PTH110 - as above
    if is_there or file.suffix in ENDINGS or file.parent != Path():
        return file
    names = {path.stem: path for path in files()}
    if file.name in names:
        return names[file.name]
    close = [name for name in names if file.name in name] or did_you_mean(file.name, names, 3, 0.4)
    problem = "is neither a file nor a recipe of this package"
    raise RequestError("recipe-unreadable", "", file, problem, close[:3], ["hybridgen recipes list"])
