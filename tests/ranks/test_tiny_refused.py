"""What cannot be made with a tiny checkpoint is refused; torch builds the checkpoint, once."""

from __future__ import annotations

import pytest

from tests.support.terminal import Terminal

REFUSED = [
    ("run --model tiny:cosmos2-t2i -p x --frames 5", "one-frame", "nearest: 1"),
    ("run --model tiny:cosmos2-t2i -p x --out clip.gif", "output-format", ".png or .mp4; nearest: clip.png"),
    ("run --model tiny:cosmos2-t2i -p x --out a.png --preview a.png", "output-twice", "one of them"),
    ("run --model tiny:cosmos2.5 -p x --out clip.png", "output-format", "nearest: clip.mp4"),
    ("run --model tiny:cosmos2-t2i -p x --image a.png", "image-unused", "from text only"),
    ("run --model tiny:cosmos2.5 -p x --video a.mp4 --image a.png", "video-and-image", "nearest: --video alone"),
    ("run --model tiny:cosmos2.5 -p x --video a.mp4 --frames 1", "video-frames", "nearest: 5"),
    ("run --model tiny:cosmos2.5 -p x --video nothere.mp4", "video", "no such file"),
]


@pytest.mark.parametrize(("command", "rule", "says"), REFUSED, ids=[c for c, _, _ in REFUSED])
def test_a_request_that_cannot_be_is_refused(command: str, rule: str, says: str, terminal: Terminal) -> None:
    terminal.refuses(command, rule, says)


@pytest.mark.parametrize("command", [c for c, _, _ in REFUSED])
def test_what_is_suggested_is_legal(command: str, terminal: Terminal) -> None:
    terminal.suggests_what_is_legal(command)
