"""Commands in a folder of their own, which must be refused before a rank starts."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

from hybridgen.cli.main import call
from hybridgen.engine.inputs import Conditioning


@dataclass(frozen=True)
class Terminal:
    """What a test's fixtures give."""

    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch
    folder: Path

    def refuses(self, command: str, rule: str, says: str) -> None:
        """The command ends with exit code 2 and one error of this rule, writes nothing and starts nothing."""

        def started(*_: object, **__: object) -> None:
            raise AssertionError("a rank was started")

        self.monkeypatch.setattr("hybridgen.engine.launch.run_local", started)
        self.monkeypatch.chdir(self.folder)
        assert call(shlex.split(command)) == 2
        out, err = self.capsys.readouterr()
        lines = err.splitlines()
        first = next(i for i, line in enumerate(lines) if line.startswith("error["))
        assert lines[first].startswith(f"error[{rule}]: ") and says in lines[first]
        assert all(line.startswith(("  why:  ", "  try:  ")) for line in lines[first + 1 :])
        assert first == 0 or rule == "prompt-missing"
        assert out == "" and list(self.folder.iterdir()) == []

    def suggests_what_is_legal(self, command: str) -> None:
        """Every suggested hybridgen command plans without an error; the files that it names are another matter."""
        self.monkeypatch.chdir(self.folder)
        call(shlex.split(command))
        self.monkeypatch.setattr("hybridgen.api.spine.open_inputs", lambda *_: Conditioning())
        for line in self.capsys.readouterr().err.splitlines():
            if line.startswith("  try:  hybridgen run"):
                words = [w for w in shlex.split(line.removeprefix("  try:  hybridgen ")) if w != "--dry-run"]
                assert call([*words, "--dry-run"]) == 0, self.capsys.readouterr().err
