"""The recipes that come with the package, by name. No torch."""

from __future__ import annotations

from pathlib import Path

from hybridgen.errors import RequestError, did_you_mean

FOLDER = Path(__file__).parent.parent / "recipes"


def files() -> list[Path]:
    """The files of all recipes of the package, sorted by name."""
    return sorted(FOLDER.glob("*.yaml"))


def located(file: Path) -> Path:
    """The path of a recipe file, or of the package's recipe of that name. Raises RequestError (recipe-unreadable)."""
    if file.exists() or file.suffix in (".yaml", ".yml") or file.parent != Path():
        return file
    names = {path.stem: path for path in files()}
    if file.name in names:
        return names[file.name]
    close = [name for name in names if file.name in name] or did_you_mean(file.name, names, 3, 0.4)
    problem = "is neither a file nor a recipe of this package"
    raise RequestError("recipe-unreadable", "", file, problem, close[:3], ["hybridgen recipes list"])
