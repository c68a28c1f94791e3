"""A plan as arguments of xDiT's runner (xfuser 0.7.0: `xdit`, or `torchrun -m xfuser.runner`). No torch.

The runner's Wan text-to-video models take Ulysses, ring and a VAE over all ranks, in bfloat16, and nothing else.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

from hybridgen.engine.prepare import negative_prompt
from hybridgen.errors import Change
from hybridgen.interop import Export, named, others_given, refuse, unnamed
from hybridgen.plan.numbers import divisors
from hybridgen.plan.plan import Plan
from hybridgen.recipe.fields import Recipe
from hybridgen.strategies import registry
from hybridgen.strategies.parallel_vae.rules import widest
from hybridgen.strategies.registry import Degrees

ENGINE = "xDiT (xfuser 0.7.0)"
MODELS = ("Wan-AI/Wan2.1-T2V-14B-Diffusers", "Wan-AI/Wan2.2-T2V-A14B-Diffusers")
"""Models that xDiT's runner and hybridgen both know."""
TARGET = "xdit"
SWITCHES = ("use_parallel_vae",)
"""xDiT's flags of degrees that take no value and mean all ranks."""
KERNELS = {
    "sdpa": "SDPA",
    "cudnn": "CUDNN",
    "flash": "SDPA_FLASH",
    "efficient": "SDPA_EFFICIENT",
    "flash-attn": "FLASH",
    "flash-attn-3": "FLASH_3",
    "flash-attn-4": "FLASH_4",
}
"""xDiT's names of attention kernels."""
KNOWN = (
    *("prompt", "negative_prompt", "image", "last_image", "video", "size", "frames", "steps", "guidance", "guidance_2"),
    *("seed", "fps", "device", "dtype", "attention"),
)
"""Fields of request and runtime that become arguments, or are refused where xDiT would do otherwise."""
FPS, SEED, FLOW_SHIFT = 16, 42, 12
"""xDiT's defaults: frame rate, seed and flow shift."""


def export(recipe: Recipe, plan: Plan) -> Export:
    """The `xdit` command that makes the recipe's clip. Raises RequestError (engine-lacks)."""
    return Export(shlex.join(["xdit", *arguments(recipe, plan)]) + "\n", warnings(recipe, plan))


def arguments(recipe: Recipe, plan: Plan) -> list[str]:
    """Arguments of xfuser.runner. Raises RequestError (engine-lacks) with all that xDiT lacks for the plan."""
    near = _nearest(plan)
    refuse(ENGINE, plan, _lacks(recipe, plan), near.flags() if near else "", _tries(recipe, plan, near))
    clip, request, sizes = plan.clip, recipe.request, named(plan, TARGET)
    switches = [name for name in SWITCHES if sizes.pop(name, None)]
    options = {
        "model": plan.facts.source,
        "prompt": request.prompt or "",
        "negative_prompt": negative_prompt(request, plan),
        "height": clip.height,
        "width": clip.width,
        "num_frames": clip.frames,
        "num_inference_steps": clip.steps,
        "guidance_scale": clip.guidance,
        "guidance_scale_2": clip.guidances[1] if plan.facts.experts > 1 else None,
        "seed": request.seed,
        "flow_shift": flow_shift(plan),
        **sizes,
        "attention_backend": KERNELS.get(recipe.runtime.attention or "auto"),
    }
    words = [word for name, value in options.items() if value is not None for word in _words(name, str(value))]
    return words + [f"--{name}" for name in switches]


def warnings(recipe: Recipe, plan: Plan) -> tuple[str, ...]:
    """Warnings where xDiT's clip would differ from the request, or from hybridgen's."""
    count, ranks = plan.tokens.tokens, plan.degrees.sequence
    found = []
    if count % ranks:
        found.append(
            f"wrong: xDiT pads the {count} tokens to a multiple of {ranks} with zeros and attends to them; "
            "take a size or degrees that divide"
        )
    if flow_shift(plan) is None:
        found.append(
            f"xDiT sets the scheduler's flow shift to {FLOW_SHIFT} unless --flow_shift says otherwise; the model's own "
            "is in its scheduler/scheduler_config.json, which is not on this machine"
        )
    found += [f"not passed on: {given}" for given in others_given(recipe, KNOWN)]
    if recipe.request.seed is None:
        found.append(f"no seed is given; xDiT takes {SEED}")
    found.append("xDiT draws the noise on the GPU, so the same seed is another clip than hybridgen's")
    if not recipe.request.prompt:
        found.append("no prompt is given; fill in --prompt ''")
    if plan.facts.revision:
        found.append(f"xDiT loads the newest revision it finds, not {plan.facts.revision}")
    if plan.order.index("ulysses") < plan.order.index("ring"):
        found.append("xDiT has its own order of ranks; --order is not passed on")
    if recipe.hardware.per_node and recipe.hardware.per_node < plan.world_size:
        found.append(
            f"on more than one machine add --nnodes {plan.world_size // recipe.hardware.per_node} "
            f"--nproc_per_node {recipe.hardware.per_node} --node_rank K --master_addr HOST on each"
        )
    return tuple(found)


def flow_shift(plan: Plan) -> float | None:
    """The checkpoint's flow shift, where its newest revision, which xDiT takes, is on this machine."""
    from huggingface_hub import try_to_load_from_cache

    if plan.facts.source not in MODELS:  # a folder, say
        return None
    path = try_to_load_from_cache(plan.facts.source, "scheduler/scheduler_config.json")
    return float(json.loads(Path(path).read_text(encoding="utf-8"))["flow_shift"]) if isinstance(path, str) else None


def _lacks(recipe: Recipe, plan: Plan) -> dict[str, bool]:
    """What xDiT's Wan models lack, and whether the plan needs it."""
    degrees, clip, world = plan.degrees, plan.clip, plan.world_size
    kernel = recipe.runtime.attention or "auto"
    return {
        "its runner has Wan 2.1 and Wan 2.2 T2V with 14B parameters only": plan.facts.source not in MODELS,
        **unnamed(plan, TARGET),
        f"decodes on one rank or on all {world} (--vae {degrees.vae})": degrees.vae not in (1, world),
        f"computes in bfloat16 (--dtype {plan.dtype})": plan.dtype != "bfloat16",
        f"writes {FPS} frames a second (--fps {clip.fps})": clip.fps != FPS,
        f"no kernel {kernel} (--attention {kernel})": kernel != "auto" and kernel not in KERNELS,
        "needs GPUs (--device cpu)": recipe.runtime.device == "cpu",
    }


def _nearest(plan: Plan) -> Degrees | None:
    """Degrees for the same number of ranks that xDiT's Wan models take; None where it lacks the model."""
    if plan.facts.source not in MODELS:
        return None
    world, heads = plan.world_size, plan.facts.transformer.heads
    ulysses = max(degree for degree in divisors(world) if heads % degree == 0)
    return Degrees(ulysses=ulysses, ring=world // ulysses, vae=world if world <= widest(plan) else 1)


def _tries(recipe: Recipe, plan: Plan, near: Degrees | None) -> list[Change]:
    """The change to these degrees, if nothing else is needed."""
    if near is None or any(_lacks(recipe, replace(plan, degrees=near)).values()):
        return []
    gone = {name: None for name in registry.BESIDE if getattr(recipe.parallel, name) is not None}
    return [{**gone, **near.instead_of(plan.degrees)}]


def _words(name: str, value: str) -> list[str]:
    return [f"--{name}={value}"] if value.startswith("-") else [f"--{name}", value]
