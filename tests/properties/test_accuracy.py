"""How far predictions are from published times, and that the committed constants are what the rows say."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import pytest

from benchmarks import planner_accuracy as accuracy
from benchmarks.fit import GUESSES, fit, guess, measured_cards, predict
from benchmarks.published import rows
from hybridgen.planner.hardware.fitted import FITTED, MEASURED
from hybridgen.planner.hardware.rates import GENERATIONS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def left_out() -> accuracy.LeftOut:
    """Predictions for every source, by constants that were fitted without it."""
    return accuracy.left_out(rows())


def test_sources_are_predicted_by_constants_that_have_not_seen_them(left_out: accuracy.LeftOut) -> None:
    found = accuracy.groups(left_out)
    goals = {"given one GPU's time, NVLink": 0.05, "given one GPU's time, PCIe": 0.12, "nothing given": 0.15}
    for name, goal in goals.items():
        assert mean(abs(line.error) for line in found[name]) <= goal, name
    lines = [line for name in goals for line in found[name]]
    assert len(lines) > 100 and mean(line.inside for line in lines) >= 0.85


def test_the_split_predicted_to_be_fastest_loses_little() -> None:
    lost = [share for _, _, share in accuracy.regrets(rows())]
    assert len(lost) >= 9 and mean(lost) <= 0.01 and max(lost) <= 0.05


def test_wan_on_gb200_is_within_5_percent() -> None:
    errors = [abs(line.error) for line in accuracy.gb200_lines(rows()) if not line.row.quantised]
    assert len(errors) == 10 and max(errors) <= 0.05


def test_cosmos3_end_to_end() -> None:
    """Published: one B200 383.1 s, 72 GB200 11.78 s, both end to end; these two times are not fitted to."""
    whole = [row.end_to_end for row in rows() if row.model == "cosmos3-super" and row.end_to_end]
    assert [row.seconds for row in whole] == [383.1, 11.78]
    assert all(abs(predict(row) / row.seconds - 1) <= 0.15 for row in whole)


def test_committed_constants_are_what_the_fit_gives() -> None:
    found = fit(rows())
    assert found.values.keys() == FITTED.keys()
    for name, value in found.values.items():
        assert value == pytest.approx(FITTED[name], rel=5e-3), name
    assert {*measured_cards(rows())} == {*MEASURED}


def test_every_shared_constant_has_a_guess_and_a_use() -> None:
    assert {guess(name) for name in FITTED} == {*GUESSES.values()}
    fitted = {f"{kind}.{name}" for kind in ("attention", "matmul") for name, g in GENERATIONS.items() if not g.like}
    assert {name for name in FITTED if "." in name} == fitted - {"attention.cpu", "matmul.cpu"}


def test_the_accuracy_page_is_up_to_date(left_out: accuracy.LeftOut, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy, "left_out", lambda found: left_out)
    assert accuracy.page(rows()) == (ROOT / "docs" / "planner-accuracy.md").read_text()
