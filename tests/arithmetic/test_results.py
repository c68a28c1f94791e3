"""What the documentation says was measured is what lies in benchmarks/results."""

from __future__ import annotations

import json

from benchmarks.pipefusion_report import PAGE, RESULTS, table


def test_the_page_on_pipefusion_shows_the_results() -> None:
    assert "\n".join(table(json.loads(RESULTS.read_text()))) in PAGE.read_text()
