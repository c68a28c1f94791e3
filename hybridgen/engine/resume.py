"""Going on with a clip whose run was ended: what its state file must say, before anything starts. No torch."""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from hybridgen.engine.report import RequestSummary
from hybridgen.errors import RequestError
from hybridgen.plan.plan import Plan

STATE = ".state.safetensors"
"""Ending of the state of a clip, which stands beside the clip until that is complete."""
RULES = {
    "state-file": "The state of a clip is its latents between two denoising steps, and what the scheduler remembers. "
    "The clip that is asked for must be the same in everything but the split, the device and the kernel.",
    "state": "PipeFusion has steps of several patches under way at once, and a guarded model writes nothing before the "
    "guardrail's verdict.",
}
MAY_DIFFER = ("device", "attention")
"""Fields of the request that may be others when a clip goes on."""
MOST_HEADER = 2**24


def check_plan(plan: Plan, flag: str) -> None:
    """Raise RequestError (state) for a plan whose state cannot be kept."""
    if plan.degrees.pipefusion > 1:
        problem = "is not supported with --pipefusion yet"
        raise RequestError("state", flag, None, problem, "a split without it", [{flag: None}])
    if plan.facts.guarded:
        problem = f"is not supported with {plan.facts.name}, whose guardrail sees the frames before anything is kept"
        raise RequestError("state", flag, None, problem, "without it", [{flag: None}])


def steps_done(path: Path, request: RequestSummary) -> int:
    """Number of steps that are done in a state file; 0 where there is none.

    request: the clip that is asked for. Raises RequestError (state-file) for a file that is damaged or of another clip.
    """
    try:
        about = _about(path)
        done, made = int(about["steps_done"]), RequestSummary(**json.loads(about["request"]))
    except FileNotFoundError:
        return 0
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
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


def _about(path: Path) -> dict[str, Any]:
    """The metadata of a safetensors file that is as long as its header says. Raises OSError, ValueError and more."""
    size = path.stat().st_size
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))
        if not 0 < length <= min(MOST_HEADER, size - 8):
            raise ValueError("no header")
        header: dict[str, Any] = json.loads(file.read(length))
    about: dict[str, Any] = header.pop("__metadata__")
    if size != 8 + length + max(tensor["data_offsets"][1] for tensor in header.values()):
        raise ValueError("cut off")
    return about
