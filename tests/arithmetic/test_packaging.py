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


def test_links_and_measurements_point_at_files() -> None:
    pages = [
        *ROOT.glob("*.md"),
        *(page for folder in ("docs", "benchmarks", "examples") for page in (ROOT / folder).rglob("*.md")),
    ]
    links = [(page, link) for page in pages for link in re.findall(r"\]\((?!\w+:)([^)#\s]+)", page.read_text())]
    machines = ROOT / "hybridgen/planner/hardware/known.py"
    links += [(ROOT / "x", found) for found in re.findall(r"benchmarks/results/[\w.-]+", machines.read_text())]
    assert len(links) > 20
    assert not [f"{page.name}: {link}" for page, link in links if not (page.parent / link).exists()]
