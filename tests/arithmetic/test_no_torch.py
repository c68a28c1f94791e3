"""The quick half stays quick."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_files_of_this_half_import_no_torch() -> None:
    names = [f"tests.arithmetic.{path.stem}" for path in sorted(HERE.glob("*.py")) if path.stem != "__init__"]
    program = f"import sys, {', '.join(names)}; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=HERE.parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
