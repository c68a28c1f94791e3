"""A recipe as a configuration file of TensorRT-LLM VisualGen (its current generation of keys). No torch.

The file says how a server is set up. Steps, guidance, seed and prompt come with each request there.
"""

from __future__ import annotations

from typing import Any

from hybridgen.errors import counted
from hybridgen.interop import Export, named, others_given, refuse, unnamed
from hybridgen.plan.plan import Plan
from hybridgen.recipe.fields import Recipe
from hybridgen.strategies import registry
from hybridgen.strategies.parallel_vae.rules import split_dim
from hybridgen.strategies.registry import AXES

ENGINE = "TensorRT-LLM VisualGen"
TARGET = "trtllm"
DEGREES = {d.engines[TARGET]: d.name for d in registry.DEGREES if TARGET in d.engines and len(d.axes) == 1}
"""TensorRT-LLM's names of degrees that are numbers, and the names here."""
KNOWN = (
    *("image", "last_image", "video", "size", "frames", "steps", "guidance", "guidance_2", "seed", "fps"),
    *("device", "dtype", "attention", "weights", "compile"),
)
"""Fields of request and runtime that are in the file, named in a warning of its own, or refused."""
QUANTISED = {"fp8": "FP8_BLOCK_SCALES", "nvfp4": "NVFP4"}
"""TensorRT-LLM's names of how matrices are held; it makes them of bf16 weights while it loads."""
BACKENDS = {"sdpa": "VANILLA", "flash-attn-4": "FA4"}
"""TensorRT-LLM's names of kernels; VANILLA returns no log-sum-exp, so merging needs FA4."""


def export(recipe: Recipe, plan: Plan) -> Export:
    """The YAML file for `trtllm-serve --visual_gen_args`. Raises RequestError (engine-lacks)."""
    import yaml

    refuse(ENGINE, plan, _lacks(recipe, plan))
    clip = plan.clip
    sizes = sorted(named(plan, TARGET).items(), key=lambda item: isinstance(item[1], tuple))
    parallel: dict[str, Any] = {name: list(size) if isinstance(size, tuple) else size for name, size in sizes}
    if plan.degrees.vae > 1 and split_dim(plan) == -2:
        parallel["parallel_vae_split_dim"] = "height"
    content = {
        "model": plan.facts.source,
        "revision": plan.facts.revision,
        "attention_config": {"backend": _backend(recipe, plan)},
        "parallel_config": parallel,
        "quant_config": _quantised(plan),
        "torch_compile_config": {"enable": True} if plan.settings.compile else None,
        "compilation_config": {"resolutions": [[clip.height, clip.width]], "num_frames": [clip.frames]},
    }
    kept = {name: value for name, value in content.items() if value}
    return Export(yaml.safe_dump(kept, sort_keys=False, default_flow_style=None), _warnings(recipe, plan))


def _quantised(plan: Plan) -> dict[str, Any] | None:
    weights = plan.settings.weights
    return {"quant_algo": QUANTISED[weights], "dynamic": True} if weights else None


def _backend(recipe: Recipe, plan: Plan) -> str:
    """The engine's name of the kernel; "auto" is torch's own, as here, unless partial results are merged."""
    kernel = recipe.runtime.attention or "auto"
    return BACKENDS[kernel] if kernel != "auto" else "FA4" if plan.degrees.cp > 1 else "VANILLA"


def _lacks(recipe: Recipe, plan: Plan) -> dict[str, bool]:
    """What the engine lacks, and whether the plan needs it."""
    degrees, count = plan.degrees, plan.tokens.tokens
    kernel = recipe.runtime.attention or "auto"
    merged, weights = degrees.cp > 1, plan.settings.weights
    uneven = count % degrees.sequence != 0 and not plan.facts.pads  # its Cosmos3 is published on 36 ranks, 44160 tokens
    return {
        f"{plan.facts.name} is not a model of the hub": plan.facts.source.count("/") != 1,
        **unnamed(plan, TARGET),
        f"its {degrees.sequence} sequence ranks must divide the {count} tokens": uneven,
        f"computes in bfloat16 (--dtype {plan.dtype})": plan.dtype != "bfloat16",
        f"no {weights} weights (--weights {weights}); nearest: {', '.join(QUANTISED)}": weights
        not in (None, *QUANTISED),
        f"no kernel {kernel} (--attention {kernel}); nearest: {', '.join(BACKENDS)}": kernel != "auto"
        and kernel not in BACKENDS,
        "its VANILLA kernel cannot be merged (--attention sdpa); nearest: flash-attn-4": merged and kernel == "sdpa",
        "needs GPUs (--device cpu)": recipe.runtime.device == "cpu",
    }


def _warnings(recipe: Recipe, plan: Plan) -> tuple[str, ...]:
    clip, (first, second) = plan.clip, plan.clip.guidances
    low = f", low-noise expert {second:g}" if plan.facts.experts > 1 else ""
    seed = "" if recipe.request.seed is None else f", seed {recipe.request.seed}"
    given = "".join(f", {what}" for what in _given(recipe, plan))
    found = [
        f"not part of this file, send it with the request: {clip.width}x{clip.height}, "
        f"{counted(clip.frames, 'frame')}, {clip.fps} fps, {counted(clip.steps, 'step')}, "
        f"guidance {first:g}{low}{seed}{given}"
    ]
    if plan.degrees.attn2d != (1, 1) and plan.degrees.tp > 1:
        found.append("attention2d together with tensor parallelism needs a build of July 2026 or newer")
    if _backend(recipe, plan) == "FA4":
        found.append("FA4 is FlashAttention-4, made for Blackwell GPUs")
    split = [axis for axis in AXES if plan.degrees.size(axis) > 1]
    if sorted(split, key=plan.order.index) != split:
        found.append("it has its own order of ranks (cfg, tp, row, col, ulysses); --order is not passed on")
    return tuple(found)


def _given(recipe: Recipe, plan: Plan) -> list[str]:
    """Conditioning inputs of the clip in words, with their files if they are named, and all else that is given."""
    clip, request = plan.clip, recipe.request
    kinds = (
        (clip.image, "image", request.image),
        (clip.last_image, "last image", request.last_image),
        (clip.video, "video", request.video),
    )
    found = [f"{kind} {name}" if name else f"the {kind}" for needed, kind, name in kinds if needed]
    return [*found, *others_given(recipe, KNOWN)]
