"""What several test files use."""

import os
import shlex
from typing import Any

import pytest

from hybridgen.cli.main import call

os.environ.pop("COLUMNS", None)  # pytest-xdist sets it; tables would be folded


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a command prints: plan("--gpus 8")."""
    monkeypatch.delenv("COLUMNS", raising=False)

    def run(flags: str, code: int = 0) -> str:
        assert call(["plan", *shlex.split(flags)]) == code
        found = capsys.readouterr()
        return found.err if code else found.out

    return run
