"""One thread in this process: ranks are forked from it, and share its cores with it. And what several files use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support.ranks import forked
from tests.support.runs import STEPS, files, hybridgen

torch.set_num_threads(1)
# Ranks share few cores. A thread of gloo that wakes must not push aside the one whose lock it needs, and then spin.
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of a run of STEPS steps on one rank: clip.mp4, clip.safetensors and so on."""
    folder = tmp_path_factory.mktemp("alone")
    done = hybridgen(folder, "--model", "demo", "--steps", str(STEPS), *files("clip"))
    assert done.stdout == "clip.mp4\n"
    return folder


@pytest.fixture(autouse=True)
def patched_ranks(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test patches, its ranks have: they are forked from this process, not kept from another test."""
    if "monkeypatch" not in request.fixturenames:
        yield
        return
    with forked():
        yield
