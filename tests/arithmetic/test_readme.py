"""The commands of README.md are taken: those that make a clip as a dry run, the others as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from hybridgen.cli.main import call

ROOT = Path(__file__).parents[2]


def commands() -> list[str]:
    """Every command line of hybridgen in the README's blocks of code, without its comment."""
    blocks = (ROOT / "README.md").read_text(encoding="utf-8").split("```")[1::2]
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [
        line.partition("hybridgen ")[2].partition(" #")[0].strip()
        for line in lines
        if re.search(r"^(\S*/|.* -m )?hybridgen ", line)
    ]


@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_readme_is_taken(command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("recipes", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    words = [
        name
        for word in shlex.split(command)
        for name in (map(str, sorted(Path().glob(word))) if "*" in word else [word])
    ]
    dry = ["--dry-run", *(["--hardware", "h100"] if "--gpus" in words else [])]  # torch would look for this machine's
    assert call([*words, *(dry if words[0] == "run" else [])]) == 0


def test_the_readme_shows_its_main_verbs() -> None:
    assert {command.split()[0] for command in commands()} >= {"run", "plan", "recipes"}
