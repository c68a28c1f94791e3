"""The manifest of a job of many clips."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hybridgen.engine.manifest import Manifest
from hybridgen.errors import RunFailed


def test_a_manifest_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """Whatever the system says: of a full disk it does not say which file."""
    (folder := tmp_path / "job").mkdir()
    manifest = Manifest.at(folder / "m.jsonl")
    manifest.note(1, status="begun")
    shutil.rmtree(folder)
    with pytest.raises(RunFailed, match=r"m\.jsonl cannot be written: No such file"):
        manifest.note(1, status="done")
