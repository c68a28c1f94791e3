"""Tiny checkpoints by name, built when first asked for and kept in the user's cache folder. No torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hybridgen.errors import RequestError

MAKERS = ("torch", "diffusers", "transformers")
"""Libraries whose version may change what is written."""


def checkpoint(name: str) -> Path:
    """Folder of the checkpoint of this name (a key of KINDS). Several processes may ask at once.

    Raises RequestError (model-unavailable) when it cannot be built there.
    """
    import tempfile

    target = _cache() / f"{name}-{_version()}"
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{target.name}.", dir=target.parent) as scratch:
            made = Path(scratch) / "checkpoint"
            _build(name, made)
            try:
                made.rename(target)
            except OSError:  # another process was faster
                if not target.is_dir():
                    raise
    except (OSError, subprocess.CalledProcessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        problem = f"it cannot be built in {target.parent} ({': '.join([type(error).__name__, *said[-1:]])})"
        nearest = "another folder, by XDG_CACHE_HOME"
        raise RequestError("model-unavailable", "model", f"tiny:{name}", problem, nearest) from error
    return target


def _build(name: str, folder: Path) -> None:
    """Build in a process of its own: ranks are forked from this one, and threads of torch do not survive a fork."""
    command = [sys.executable, "-m", "hybridgen.models.tiny.build", name, str(folder)]
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(root), os.getenv("PYTHONPATH"))))}
    subprocess.run(command, env=environment, check=True, capture_output=True, text=True)


def _cache() -> Path:
    base = os.getenv("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "hybridgen" / "tiny"


def _version() -> str:
    """A version that changes with everything that decides the bytes: this code and the libraries that write."""
    import hashlib
    from importlib.metadata import version

    digest = hashlib.sha256(" ".join(version(library) for library in MAKERS).encode())
    here = Path(__file__).parent
    for path in sorted([*here.glob("*.py"), *here.parent.glob("*/tiny.py")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
