"""The quick tests stay quick."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_files_of_these_folders_import_no_torch() -> None:
    files = [path for folder in (HERE, HERE.parent / "properties") for path in sorted(folder.glob("test_*.py"))]
    names = [f"tests.{path.parent.name}.{path.stem}" for path in files]
    program = f"import sys, {', '.join(names)}; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=HERE.parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
