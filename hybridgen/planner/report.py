"""A recommendation as plain data: the JSON of `hybridgen plan` (format: docs/planner.md), and the recipe of a plan."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from hybridgen.degrees import AXES
from hybridgen.plan import Plan
from hybridgen.planner.orders import used_axes
from hybridgen.planner.ranking import Candidate
from hybridgen.planner.recommend import Recommendation, Rejected
from hybridgen.recipe import SCHEMA

SCHEMA_VERSION = 1
WIDTH = 76
MISREAD = ("true", "false", "yes", "no", "on", "off", "null", "y", "n")
"""Words that YAML takes for something else than text."""


def as_data(
    found: Recommendation, shown: Sequence[Candidate], rejected: Iterable[Rejected], frames: int
) -> dict[str, Any]:
    """Everything about a request, in the order of the table."""
    ask, plan = found.ask, found.best.plan
    clip, facts, hardware = plan.clip, plan.facts, ask.hardware
    return {
        "schema": SCHEMA_VERSION,
        "request": {
            "gpus": ask.gpus,
            "size": f"{clip.width}x{clip.height}",
            "frames": frames,
            "latent_frames": plan.latent_shape[1],
            "tokens": plan.tokens.tokens,
            "steps": clip.steps,
            "guidance": clip.guidance,
            "heads": facts.transformer.heads,
            "dtype": plan.dtype,
            "fixed": {name: list(v) if isinstance(v, tuple) else v for name, v in ask.fixed.items()},
            "memory_limit_gb": None if ask.memory is None else round(ask.memory / 1e9, 3),
            "max_time_s": ask.max_time,
        },
        "model": facts.name,
        "hardware": hardware.name,
        "world_size": plan.world_size,
        "one_gpu_denoise_s": round(found.one_gpu, 4),
        "candidates": [candidate_data(c) for c in shown],
        "rejected": [
            {"config": str(r.plan.degrees), "rule": r.rule, "message": r.message, "nearest": r.nearest}
            for r in rejected
        ],
    }


def candidate_data(candidate: Candidate) -> dict[str, Any]:
    """One plan with what is predicted for it."""
    plan, cost = candidate.plan, candidate.cost
    degrees = asdict(plan.degrees)
    return {
        "config": candidate.config,
        "degrees": {**degrees, "attn2d": list(degrees["attn2d"])},
        "order": used_axes(plan),
        "exact": plan.exact,
        "denoise_s": round(cost.denoise, 4),
        "end_to_end_s": round(cost.clip, 4),
        "vae_s": round(cost.decode, 4),
        "range_s": [round(s, 4) for s in cost.range],
        "speedup": round(candidate.speedup, 4),
        "efficiency": round(candidate.efficiency, 4),
        "communication": round(cost.communication, 4),
        "memory_gb": {
            **{term.name: round(term.size / 1e9, 3) for term in candidate.terms},
            "peak": round(candidate.peak / 1e9, 3),
        },
        "seconds": {
            f"{item.name} {item.axis}" if item.axis in ("row", "col") else item.name: round(item.seconds, 4)
            for item in cost.items
        },
        "bytes_per_step": candidate.bytes_per_step,
        "tie": candidate.tie,
        "why": list(candidate.why),
    }


def recipe_of(candidate: Candidate, model: str, hardware: str) -> dict[str, Any]:
    """The recipe that runs a plan: the keys of recipe.Recipe that are not open."""
    plan = candidate.plan
    clip, defaults = plan.clip, plan.facts.defaults
    parallel: dict[str, Any] = {
        name: int(value) if value.isdigit() else value for name, value in plan.degrees.named().items()
    }
    if plan.order != AXES:
        parallel["order"] = used_axes(plan)
    parallel |= _pipefusion(plan)
    request: dict[str, Any] = {
        "size": f"{clip.width}x{clip.height}",
        "frames": clip.frames,
        "steps": clip.steps,
    }
    if clip.guidances != (defaults.guidance, defaults.guidance_2 or defaults.guidance):
        request["guidance"] = clip.guidance
        if plan.facts.experts > 1 and plan.branches == 2:  # one scale alone would be taken for both
            request["guidance_2"] = clip.guidances[1]
    return {
        "schema": SCHEMA,
        "model": model,
        "request": request,
        "parallel": parallel,
        "runtime": {"dtype": plan.dtype},
        "hardware": {"name": hardware, "gpus": plan.world_size},
    }


def recipe_text(recipe: dict[str, Any]) -> str:
    """A recipe as YAML, one line a section as far as they fit; PyYAML would take a tenth of plan's whole time."""
    lines: list[str] = []
    for key, value in recipe.items():
        if isinstance(value, dict):
            parts = [f"{name}: {_scalar(item)}" for name, item in value.items()]
            text = f"{key}: {{{', '.join(parts)}}}"
            lines += textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        else:
            lines.append(f"{key}: {_scalar(value)}")
    return "\n".join(lines) + "\n"


def _scalar(value: Any) -> str:
    """A value in YAML's flow style; text that could be read as something else in quotes, as JSON has them."""
    if isinstance(value, list):
        return f"[{', '.join(map(_scalar, value))}]"
    if isinstance(value, str):
        plain = re.fullmatch(r"[A-Za-z][\w./-]*|\d+x\d+", value) and value.lower() not in MISREAD
        return value if plain else json.dumps(value)
    return json.dumps(value)


def run_flags(candidate: Candidate) -> list[str]:
    """The degrees as flags of run, and the mesh order where it is not the usual one."""
    plan = candidate.plan
    words = plan.degrees.flags().split()
    words += [word for name, value in _pipefusion(plan).items() for word in (f"--{name}", str(value))]
    return words if plan.order == AXES else [*words, "--order", ",".join(used_axes(plan))]


def _pipefusion(plan: Plan) -> dict[str, int]:
    """Patches and warm-up steps, where they are not what is taken without a word."""
    if plan.degrees.pipefusion == 1:
        return {}
    usual = {"patches": 0, "warmup": 1}
    return {name: getattr(plan, name) for name, value in usual.items() if getattr(plan, name) != value}
