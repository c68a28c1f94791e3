"""However a checkpoint is broken, it is read or refused, in little memory, with one line.

HYBRIDGEN_FUZZ=1000 tries as many instead of a few.
"""

from __future__ import annotations

import os
import resource
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from hybridgen.cli.main import call
from hybridgen.errors import RequestError
from hybridgen.models.checkpoint import from_folder
from tests.support import stored
from tests.support.mutants import mutate

COUNT = int(os.getenv("HYBRIDGEN_FUZZ", "60"))


@pytest.fixture
def little_memory() -> Iterator[None]:
    """No more than 2 GB more than now."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**31, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def test_broken_checkpoints_are_refused_by_a_rule(
    tmp_path: Path, little_memory: None, capsys: pytest.CaptureFixture[str]
) -> None:
    draw, ended = Random(5), Counter[str]()
    digits = sys.get_int_max_str_digits()
    for number in range(COUNT):
        folder = stored.demo(tmp_path / str(number))
        said = mutate(folder, draw)
        try:
            from_folder(folder)
            rule = "fine"
        except RequestError as error:
            rule = error.rule
            assert error.message.isprintable() and len(error.message) < 600 + len(str(folder)), said
        ended[rule] += 1
        if number % 10 == 0:  # the command, too
            capsys.readouterr()
            assert (call(["run", "--model", str(folder), "-p", "x", "--dry-run"]) == 0) == (rule == "fine"), said
            assert "Traceback" not in capsys.readouterr().err
    assert sys.get_int_max_str_digits() == digits
    assert ended["unreadable-model"] > COUNT / 2 and ended["fine"] < COUNT / 4, ended
