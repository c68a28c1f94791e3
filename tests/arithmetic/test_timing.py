"""Where the time of denoising went: the slowest rank, and why steps take longer than predicted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hybridgen.distributed.waits import Waits
from hybridgen.engine import predict as predicting
from hybridgen.engine.predict import predict
from hybridgen.engine.timing import LIMIT, Prediction, RankTimes, held, plain, slowest
from hybridgen.plan.plan import Plan
from hybridgen.planner.hardware.lookup import find
from hybridgen.planner.price.compute import eager_seconds
from hybridgen.planner.price.cost import cost
from hybridgen.recipe.compose import compose
from hybridgen.recipe.resolve import resolve

PREDICTION = Prediction(
    machine="4 x H200", kernel="cudnn", step=1.0, error=0.1, waiting=0.2, exchanges={"ulysses": 0.15, "cfg": 0.05}
)
QUICK = {"ulysses": 0.15, "cfg": 0.05}


def times(computing: float, exchanges: dict[str, float], host: str = "a") -> RankTimes:
    """Three steps; the first takes a minute longer, as one that warms up does."""
    step = computing + sum(exchanges.values())
    return RankTimes.of(host, [step + 60, step, step], [exchanges] * 3)


def reason(ranks: list[RankTimes], kernel: str = "cudnn", blocks: list[int] | None = None) -> str:
    return held(PREDICTION, ranks, blocks or [1] * len(ranks), kernel).reason


def test_the_slowest_rank_is_the_one_that_computes_longest() -> None:
    quick = times(0.8, {"ulysses": 0.9, "cfg": 0.1})
    found = slowest([quick, quick, times(1.7, {"cfg": 0.1}, "b"), quick])
    assert found is not None and (found.rank, found.host) == (2, "b")
    figures = found.computing, found.waiting, found.others_computing, found.others_waiting
    assert figures == pytest.approx((1.7, 0.1, 0.8, 1.0))
    assert slowest([quick]) is None and slowest([RankTimes.of("a", [], [])] * 2) is None


def test_a_rank_that_lags_is_named() -> None:
    late = {"ulysses": 1.05, "cfg": 0.05}
    ranks = [times(0.8, late), times(1.75, {"ulysses": 0.1, "cfg": 0.05}, "b"), times(0.8, late), times(0.8, late)]
    assert reason(ranks) == "rank 1 (b) lags: it computes 1.75 s a step, others 0.8 s"


def test_stages_of_unequal_length_are_no_lag() -> None:
    """With four blocks for one the first stage computes four times as long, as it should."""
    ranks = [times(1.6, {"pipefusion": 0.2}), times(0.4, {"pipefusion": 1.4})]
    assert "lags" not in reason(ranks, blocks=[4, 1]) and "lags" in reason(ranks, blocks=[1, 1])
    assert reason([times(1.9, {}), times(0.6, {"pipefusion": 1.3})], blocks=[2, 2]).startswith("rank 0 (a) lags")


def test_a_slow_link_is_named_by_what_goes_over_it() -> None:
    ranks = [times(0.8, {"ulysses": 0.15, "cfg": 1.05}), times(0.8, {"ulysses": 0.15, "cfg": 1.1})]
    assert reason(ranks) == "a link is slow: exchanges of cfg take 1.05 s a step, predicted 0.05 s"


def test_a_kernel_that_fell_back_is_named() -> None:
    ranks = [times(1.9, QUICK), times(1.9, QUICK)]
    assert reason(ranks, "math") == "attention ran on the kernel math, and the prediction is for cudnn"
    assert reason(ranks).startswith("all ranks compute 1.9 s a step, and 0.8 s are predicted")


def test_steps_within_the_limit_have_no_reason() -> None:
    for longer, warned in ((LIMIT - 0.01, False), (LIMIT + 0.01, True)):
        found = held(PREDICTION, [times(longer - 0.2, QUICK)], [1], "math")
        assert found.ratio == pytest.approx(longer) and bool(found.warning) == bool(found.reason) == warned


def test_without_a_prediction_nothing_is_compared() -> None:
    found = held(Prediction("no figures"), [times(9.0, QUICK)], [1], "math")
    assert (found.warning, found.ratio) == ("", 0.0) and found.measured == pytest.approx(9.2)
    assert plain(found) == {"missing": "no figures", "measured": found.measured}
    assert plain(Prediction()) == {"missing": "no step ran", "measured": 0.0}


@pytest.fixture(scope="module")
def plan() -> Plan:
    return resolve(compose(None, [], {"model": "wan2.2", "cfg": 2, "ulysses": 2, "pipefusion": 2}))


def test_a_prediction_is_what_the_planner_prices(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicting, "device_name", lambda device: "NVIDIA H200")
    found, price = predict(plan, "cuda"), cost(plan, find("h200"))
    whole = price.denoise + eager_seconds(plan, find("h200"))
    assert found.step * plan.clip.steps == pytest.approx(whole, rel=1e-5) and not found.missing
    assert (found.machine, found.kernel) == ("8 x H200", "cudnn")
    assert set(found.exchanges) == {"cfg", "ulysses", "pipefusion"}
    assert sum(found.exchanges.values()) < found.waiting < found.step  # the pipeline's bubbles are waited for, too


def test_a_device_that_the_planner_does_not_know_has_none(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "of this CPU" in predict(plan, "cpu").missing and predict(plan, "cpu", "h200").machine == "8 x H200"
    monkeypatch.setattr(predicting, "device_name", lambda device: "NVIDIA X1")
    assert predict(plan, "cuda") == Prediction("NVIDIA X1 is not a machine that the planner knows")


class Event:
    """An event of a stream whose clock the test moves."""

    now, made = 0.0, 0

    def __init__(self) -> None:
        Event.made += 1

    def record(self) -> None:
        self.at = Event.now

    def elapsed_time(self, other: Event) -> float:
        return other.at - self.at


def test_events_are_read_once_the_step_is_over_and_used_again() -> None:
    waits = Waits(Event)
    waits.end("setup", waits.begin())  # outside of a step nothing is recorded
    for step in range(3):
        waits.start()
        for strategy, milliseconds in (("cfg", 2.0), ("ulysses", 5.0), ("cfg", 3.0)):
            began = waits.begin()
            Event.now += milliseconds
            waits.end(strategy, began)
            Event.now += 100  # what is computed
        assert not waits.seconds, step
        assert waits.stop() == pytest.approx({"cfg": 0.005, "ulysses": 0.005})
    assert Event.made == 6


def test_the_clock_counts_in_steps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([1.0, 3.0, 10.0, 10.5])
    monkeypatch.setattr("hybridgen.distributed.waits.time.perf_counter", lambda: next(now))
    waits = Waits()
    waits.end("setup", waits.begin())
    waits.start()
    for _ in range(2):
        waits.end("cfg", waits.begin())
    assert waits.stop() == {"cfg": 2.5}
    waits.start()
    assert waits.stop() == {}


def test_a_step_is_never_shorter_than_its_exchanges() -> None:
    assert replace(RankTimes.of("a", [1.0], [{"cfg": 1.5}]), exchanges={}) == RankTimes("a", (0.0,), (1.0,), {})
