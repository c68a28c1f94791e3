"""No choice flips against physics: random requests, with more bandwidth, more frames, more GPUs."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest

from hybridgen.models import catalogue
from hybridgen.plan.plan import Clip, Plan
from hybridgen.planner.choose import recommend
from hybridgen.planner.choose.ask import Ask, Recommendation
from hybridgen.planner.choose.ranking import TIE
from hybridgen.planner.choose.search import search_best
from hybridgen.planner.hardware.constants import Link
from hybridgen.planner.hardware.lookup import find
from hybridgen.strategies.registry import Degrees

MODELS = ("wan2.2", "wan2.1-1.3b", "wan2.2-5b", "cosmos2.5-14b", "cosmos3-nano")
MACHINES = ("gb200-nvl72", "h100", "a100", "h100-pcie", "l40s", "rtx4090")
SIZES = ((832, 480), (1280, 704))
REQUESTS = range(320)
FIELDS = ("cfg", "tp", "ring", "attn2d", "ulysses")


@cache
def request(number: int) -> Ask:
    """A random request, the same for the same number, on GPUs with memory for any plan."""
    chance = random.Random(number)
    facts = catalogue.find(chance.choice(MODELS))
    frames = 4 * chance.randint(3, 20) + 1
    clip = Clip(*chance.choice(SIZES), frames, 40, chance.choice((1.0, 5.0)))
    gpus = chance.choice((2, 3, 4, 6, 8, 8, 12, 16, 16, 24))
    return Ask(Plan(facts, clip, Degrees()), gpus, find(chance.choice(MACHINES)), memory=1e15)


@cache
def found(number: int) -> Recommendation:
    return search_best(request(number))


def longer(ask: Ask, times: int) -> Recommendation:
    """The recommendation for a clip with so many times the latent frames."""
    clip = ask.template.clip
    frames = ((clip.frames - 1) // 4 + 1) * times * 4 - 3
    return search_best(replace(ask, template=replace(ask.template, clip=replace(clip, frames=frames))))


@pytest.mark.parametrize("first", range(0, len(REQUESTS), 40))
def test_more_bandwidth_makes_no_recommended_plan_slower(first: int) -> None:
    def faster(link: Link, factor: float) -> Link:
        return replace(link, bandwidth=link.bandwidth.times(factor, "made up"))

    for number in REQUESTS[first : first + 40]:
        ask, factor = request(number), random.Random(-number).choice((1.3, 2, 5))
        machine = ask.hardware
        wider = replace(machine, inside=faster(machine.inside, factor), outside=faster(machine.outside, factor))
        assert search_best(replace(ask, hardware=wider)).best.cost.clip <= found(number).best.limit, number


@pytest.mark.parametrize("first", range(0, len(REQUESTS), 80))
def test_what_is_recommended_for_fewer_and_for_more_frames_ties_between(first: int) -> None:
    for number in REQUESTS[first : first + 80 : 4]:
        ask, short, long = request(number), found(number), longer(request(number), 4)
        if short.best.plan.degrees.changed(vae=1) == long.best.plan.degrees.changed(vae=1):
            between = longer(ask, 2)
            kept = {name: getattr(short.best.plan.degrees, name) for name in FIELDS}
            same = search_best(replace(between.ask, fixed=kept))
            assert same.best.cost.clip <= between.best.limit, number


@pytest.mark.parametrize("number", range(400, 420))
def test_any_smaller_number_of_gpus_that_is_faster_is_found(number: int) -> None:
    """Against every smaller number: the one that is told is as fast as the fastest, within two ties."""
    gpus = random.Random(number).randint(5, 40)
    ask = replace(request(number), gpus=gpus)
    whole = recommend.recommend(ask)
    least = min((search_best(replace(ask, gpus=few)).fastest for few in range(1, gpus)), key=lambda c: c.cost.clip)
    told = recommend.faster_with_fewer(whole)
    assert (told is not None) or least.limit >= whole.fastest.cost.clip * (1 - TIE.value), (gpus, least.config)
    if told is not None:
        assert told.ask.gpus < gpus and told.fastest.limit < whole.fastest.cost.clip
        assert told.fastest.cost.clip <= least.cost.clip * (1 + TIE.value) ** 2
    fewest = recommend.with_fewer(ask)
    assert fewest.best.cost.clip <= min(least.limit, whole.best.limit) * (1 + TIE.value)


def test_72_gpus_that_split_badly_are_told_of_fewer() -> None:
    facts = catalogue.find("cosmos2.5-14b")
    ask = Ask(Plan(facts, Clip(832, 480, facts.defaults.frames, 36, 1.0), Degrees()), 72, find("b200"))
    told = recommend.faster_with_fewer(recommend.recommend(ask))
    assert told is not None and told.ask.gpus in (60, 64, 70)
