"""Going on with a clip whose run was ended: what its state file must say, before anything starts. No torch."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path

from hybridgen.engine.report import RequestSummary
from hybridgen.errors import PREEMPTED, RequestError
from hybridgen.models.headers import Missing, Unreadable, read_header
from hybridgen.plan.plan import Plan

STATE = ".state.safetensors"
"""Ending of the state of a clip, which stands beside the clip until that is complete."""
RULES = {
    PREEMPTED: "A cluster warns before it takes its machines back. The run has kept the state of the clip, and the "
    "same command with --resume goes on from it.",
    "state-file": "The state of a clip is its latents between two denoising steps, and what the scheduler remembers. "
    "The clip that is asked for must be the same in everything but the split, the device and the kernel.",
    "state": "A guarded model writes nothing before the guardrail's verdict.",
}
MAY_DIFFER = ("device", "attention")
"""Fields of the request that may be others when a clip goes on."""


def check_plan(plan: Plan, flag: str) -> None:
    """Raise RequestError (state) for a plan whose state cannot be kept."""
    if plan.facts.guarded:
        problem = f"is not supported with {plan.facts.name}, whose guardrail sees the frames before anything is kept"
        raise RequestError("state", flag, None, problem, "without it", [{flag: None}])


def steps_done(path: Path, request: RequestSummary) -> int:
    """Number of steps that are done in a state file; 0 where there is none.

    request: the clip that is asked for. Raises RequestError (state-file) for a file that is damaged or of another clip.
    """
    try:
        header = read_header(path)
        done, made = int(header.about["steps_done"]), RequestSummary(**json.loads(header.about["request"]))
        is_whole = "latents" in header.tensors and isinstance(json.loads(header.about["scheduler"]), dict)
        if not is_whole or not 0 < done < made.steps:
            raise ValueError
    except Missing:
        return 0
    except (OSError, Unreadable, ValueError, LookupError, TypeError, RecursionError) as error:
        problem = "is not the state of a clip, or it is damaged"
        near = "the run without --resume"
        raise RequestError("state-file", "resume", path, problem, near, [{"resume": None}]) from error
    asked = asdict(request)
    for item in fields(made):
        found = getattr(made, item.name)
        if item.name not in MAY_DIFFER and found != asked[item.name]:
            problem = f"is of another clip: its {item.name.replace('_', ' ')} is {found}, not {asked[item.name]}"
            tries = [{"seed": str(found)} if item.name == "seed" else {"resume": None}]
            raise RequestError("state-file", "resume", path, problem, "the command that left it", tries)
    return done
