"""One thread in this process: ranks are forked from it, and share its cores with it. And what several files use."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.runs import files, hybridgen

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the one-rank run's files: clip.mp4, clip.safetensors and so on."""
    folder = tmp_path_factory.mktemp("alone")
    done = hybridgen(folder, "--model", "demo", *files("clip"))
    assert done.stdout == "clip.mp4\n"
    return folder
