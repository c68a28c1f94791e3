"""What several test files use."""

import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from hybridgen.cli.main import call
from tests.support.terminal import Terminal

os.environ.pop("COLUMNS", None)  # pytest-xdist sets it; tables would be folded


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Terminal:
    """Runs commands that are refused."""
    return Terminal(capsys, monkeypatch, tmp_path)


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a command prints: plan("--gpus 8")."""
    monkeypatch.delenv("COLUMNS", raising=False)

    def run(flags: str, code: int = 0) -> str:
        assert call(["plan", *shlex.split(flags)]) == code
        found = capsys.readouterr()
        return found.err if code else found.out

    return run
