"""The wheel holds what git tracks, the folders at the top are the package's, and what pages point at is there."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["strategies", "cli", "recipes"])
def test_top_level_folder_is_linked(name: str) -> None:
    assert (ROOT / "hybridgen" / name).samefile(ROOT / name)


def test_the_wheel_is_what_git_tracks(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    linked = ("strategies", "cli", "recipes")
    expected = {f"hybridgen/{name}" if name.split("/")[0] in linked else name for name in tracked}
    expected = {
        name for name in expected if name.startswith("hybridgen/") and name.removeprefix("hybridgen/") not in linked
    }
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    found = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert found == expected


PAGES = [
    *ROOT.glob("*.md"),
    *(page for folder in ("docs", "benchmarks", "examples") for page in (ROOT / folder).rglob("*.md")),
]


def links(page: Path) -> list[tuple[Path, str]]:
    """File and anchor of every link of a page to a file of the repository; the anchor is empty where none is given."""
    found = re.findall(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text(encoding="utf-8"))
    return [(page.parent / name if name else page, anchor) for name, anchor in found]


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings: small letters, no punctuation, hyphens for spaces."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ +(.+?) *$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_and_measurements_point_at_files() -> None:
    machines = ROOT / "hybridgen/planner/hardware/known.py"
    files = [(page.name, file) for page in PAGES for file, _ in links(page)]
    files += [("known.py", ROOT / name) for name in re.findall(r"benchmarks/results/[\w.-]+", machines.read_text())]
    assert len(files) > 20
    assert not [f"{name}: {file}" for name, file in files if not file.exists()]


def test_anchors_of_links_are_headings() -> None:
    found = [(page.name, file, anchor) for page in PAGES for file, anchor in links(page) if anchor]
    assert len(found) > 10
    assert not [f"{name}: {file.name}#{anchor}" for name, file, anchor in found if anchor not in anchors(file)]
