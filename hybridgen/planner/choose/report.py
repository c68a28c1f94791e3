"""A recommendation as plain data, the JSON of `hybridgen plan` (docs/planner-reference.md), and a plan's recipe."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from hybridgen.plan.plan import Plan
from hybridgen.planner.choose.ask import Recommendation, Rejected
from hybridgen.planner.choose.objective import Aim
from hybridgen.planner.choose.orders import used_axes
from hybridgen.planner.choose.ranking import Candidate
from hybridgen.planner.price.compute import eager_seconds
from hybridgen.recipe.fields import WRITTEN, Hardware, Parallel, Recipe, Request
from hybridgen.strategies import registry

SCHEMA_VERSION = 1
TEXTS = {setting.name for setting in registry.SETTINGS if setting.type is not int}
"""Keys of a recipe that hold text."""


def as_data(
    found: Recommendation, shown: Sequence[Candidate], rejected: Iterable[Rejected], frames: int
) -> dict[str, Any]:
    """The recommendation as JSON data, plans in the order of the table."""
    ask, plan = found.ask, found.best.plan
    clip, facts, hardware = plan.clip, plan.facts, ask.hardware
    return {
        "schema": SCHEMA_VERSION,
        "request": {
            "gpus": found.gpus,
            "size": f"{clip.width}x{clip.height}",
            "frames": frames,
            "latent_frames": plan.latent_shape[1],
            "tokens": plan.tokens.tokens,
            "steps": clip.steps,
            "guidance": clip.guidance,
            "heads": facts.transformer.heads,
            "dtype": plan.dtype,
            "settings": plan.settings.as_data(),
            "fixed": {name: list(v) if isinstance(v, tuple) else v for name, v in ask.fixed.items()},
            "memory_limit_gb": None if ask.memory is None else round(ask.memory / 1e9, 3),
            "max_time_s": ask.max_time,
            "cards": list(hardware.cards),
            "anchor": None if ask.anchor is None else ask.anchor.as_data(),
            "objective": str(ask.aim.objective),
            "price_per_gpu_hour": ask.aim.price,
            "clips": ask.aim.clips,
        },
        "model": facts.name,
        "hardware": hardware.name,
        "world_size": plan.world_size,
        "one_gpu_denoise_s": round(found.one_gpu, 4),
        "candidates": [candidate_data(c, ask.aim) for c in shown],
        "rejected": [
            {"config": str(r.plan.degrees), "rule": r.error.rule, "message": r.error.message, "nearest": r.nearest}
            for r in rejected
        ],
    }


def candidate_data(candidate: Candidate, aim: Aim = Aim()) -> dict[str, Any]:
    """One plan with what is predicted for it."""
    plan, cost, made = candidate.plan, candidate.cost, aim.output(candidate)
    return {
        "config": candidate.config,
        "degrees": plan.degrees.as_data(),
        "options": plan.used_options(),
        "order": used_axes(plan),
        "exact": plan.exact,
        "denoise_s": round(cost.denoise, 4),
        "end_to_end_s": round(cost.clip, 4),
        "vae_s": round(cost.decode, 4),
        "eager_s": round(eager_seconds(plan, candidate.hardware), 4),
        "range_s": [round(s, 4) for s in cost.range],
        "speedup": round(candidate.speedup, 4),
        "efficiency": round(candidate.efficiency, 4),
        "communication": round(cost.communication, 4),
        "copies": candidate.copies,
        "clips_per_hour": round(made.per_hour, 4),
        "gpu_seconds_per_clip": round(made.gpu_seconds, 4),
        "money_per_clip": None if made.money is None else round(made.money, 6),
        "clips_s": None if made.seconds is None else round(made.seconds, 4),
        "clips_money": None if made.total is None else round(made.total, 4),
        "memory_gb": {
            **{term.name: round(term.size / 1e9, 3) for term in candidate.terms},
            "peak": round(candidate.peak / 1e9, 3),
        },
        "seconds": {
            f"{item.name} {item.axis}" if item.axis in registry.PAIRED else item.name: round(item.seconds, 4)
            for item in cost.items
        },
        "bytes_per_step": candidate.bytes_per_step,
        "tie": candidate.tie,
        "memory_limit_gb": round(candidate.memory / 1e9, 3) if math.isfinite(candidate.memory) else None,
        "tight": candidate.tight,
        "why": list(candidate.why),
    }


def recipe_of(asked: Recipe, plan: Plan, model: str, hardware: str, memory: float | None = None) -> Recipe:
    """A plan as a recipe: the request as asked for, with nothing open that decides the plan, its degrees, and the
    machine, with the bytes of a GPU that it was chosen for.
    """
    clip = plan.clip
    return replace(
        asked,
        license=WRITTEN,
        model=model,
        checkpoint=replace(asked.checkpoint, license=plan.facts.licence or None),
        request=replace(asked.request, size=f"{clip.width}x{clip.height}", frames=clip.frames, steps=clip.steps),
        parallel=with_parallel(Parallel(), plan),
        runtime=replace(asked.runtime, dtype=plan.dtype),
        hardware=Hardware(hardware, plan.world_size, None if memory is None else memory / 1e9),
        measured=[],
    )


def with_parallel(parallel: Parallel, plan: Plan) -> Parallel:
    """The recipe's parallel section with the plan's degrees and mesh order."""
    changes: dict[str, Any] = dict(registry.NO_SHORTHANDS)
    for name, value in plan.parallel().items():
        if name == "order":
            changes[name] = value.split(",")
        else:
            changes[name] = value if name in TEXTS else int(value)
    return replace(parallel, **changes)


def input_flags(plan: Plan, request: Request) -> list[str]:
    """Flags of run for the prompt, and for images that the model needs and that are not given yet."""
    first = ["--image", "image.png"] if plan.clip.image and request.image is None else []
    last = ["--last-image", "last.png"] if plan.clip.last_image and request.last_image is None else []
    return [*first, *last, "-p", request.prompt or plan.facts.defaults.example]


def run_flags(plan: Plan) -> list[str]:
    """Degrees and mesh order as flags of run."""
    return [word for name, value in plan.parallel().items() for word in (f"--{name}", value)]
