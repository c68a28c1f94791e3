"""Published rows in 8 or 4 bits, predicted by the settings of a plan. No constant is fitted to them.

python -m benchmarks.precision        (in the root of the repository)
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.fit import predict
from benchmarks.planner_accuracy import Line, spread, table
from benchmarks.published import Row, rows
from hybridgen.planner.price import ranges


def lines(found: Sequence[Row]) -> list[Line]:
    """Rows of models, cards and splits that the planner knows, in few bits, beside what is predicted."""
    low = [row for row in found if row.priced and row.quantised]
    return [Line(row, predict(row), ranges.share(row.plan(), row.machine)) for row in low]


if __name__ == "__main__":
    own = lines(rows())
    print("\n".join([*table(own), "", " | ".join(spread(own))]))
