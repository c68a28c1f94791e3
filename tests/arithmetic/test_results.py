"""What the documentation says was measured is what lies in benchmarks/results."""

from __future__ import annotations

import json

from benchmarks.pipefusion_report import RESULTS, TABLE, page


def test_the_table_on_pipefusion_shows_the_results() -> None:
    assert page(json.loads(RESULTS.read_text())) == TABLE.read_text()
