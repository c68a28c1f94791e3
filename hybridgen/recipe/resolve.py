"""From a recipe to a plan: fill in what is open, and refuse what cannot be before anything starts. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from hybridgen.errors import Change, RequestError, counted, did_you_mean
from hybridgen.models import catalogue
from hybridgen.plan.axes import Value
from hybridgen.plan.facts import ModelFacts
from hybridgen.plan.numbers import divisors, not_legal
from hybridgen.plan.plan import ITEMSIZE, Plan
from hybridgen.plan.settings import Settings, settings
from hybridgen.recipe.clip import clip_of
from hybridgen.recipe.fields import DEVICES, Parallel, Recipe, Runtime, keys_of
from hybridgen.recipe.legal import nearest_plans
from hybridgen.strategies import registry
from hybridgen.strategies.pipefusion import rules as pipefusion
from hybridgen.strategies.registry import AXES, Degrees

MAX_RANKS = 65536
"""Most ranks of a plan: more than any machine has, so that a typing error is refused before its arithmetic."""

RULES = {
    "gpus-product": "Every rank has one place in the mesh, so the degrees multiply to the number of ranks. The VAE's "
    "ranks are laid over the others and do not count.",
    "order": "The mesh order names axes, slowest first. `run` needs every axis with more than one rank; with `plan` "
    "the others follow in their usual place.",
    "heads": "--heads cuts the channels of the model's attention into another number of heads, all equally wide.",
}


def resolve(recipe: Recipe, gpus: int | None = None, video_frames: int | None = None) -> Plan:
    """The plan that a recipe describes, checked against every rule.

    `gpus` is the number of ranks asked for (--gpus), if any; `video_frames` as for clip_of(). Raises RequestError.
    """
    plan = unchecked(recipe, video_frames)
    with in_given_words(recipe.parallel):
        check(plan, gpus)
    return plan


def unchecked(recipe: Recipe, video_frames: int | None = None) -> Plan:
    """The plan that a recipe describes, before its rules are checked. Raises RequestError if it is not a plan."""
    facts = catalogue.find(recipe.model, recipe.checkpoint.revision)
    plan = template(recipe, facts, video_frames)
    degrees = degrees_of(recipe.parallel)
    return replace(plan, degrees=degrees, order=order_of(recipe.parallel.order, degrees))


def faults(recipe: Recipe, video_frames: int | None = None) -> tuple[list[RequestError], Plan | None]:
    """Every fault of a recipe's plan, each field that is refused left at its default for the others; and the plan.

    The plan is None where the model, or what has no field, is refused.
    """
    found: list[RequestError] = []
    while True:
        try:
            plan = unchecked(recipe, video_frames)
            return [*found, *(as_given(one, recipe.parallel) for one in broken(plan))], plan
        except RequestError as error:
            found.append(error)
            section, *name = keys_of(error.flag) or ("model",)
            if not name or getattr(part := getattr(recipe, str(section)), str(name[0])) is None:
                return found, None
            recipe = replace(recipe, **{str(section): replace(part, **{str(name[0]): None})})


def template(recipe: Recipe, facts: ModelFacts, video_frames: int | None = None) -> Plan:
    """The plan of a recipe with every degree open. Raises RequestError."""
    check_runtime(recipe.runtime)
    parallel = recipe.parallel
    options = {option.name: getattr(parallel, option.name) for option in registry.OPTIONS}
    given: dict[str, int] = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        if value < 1:
            raise RequestError("degree", name, value, "must be 1 or more", [1])
    return Plan(
        facts,
        clip_of(recipe.request, facts, video_frames),
        Degrees(),
        dtype=recipe.runtime.dtype or facts.defaults.dtype,
        stages=pipefusion.parse(str(parallel.pipefusion))[1] if parallel.pipefusion else (),
        options=given,
        settings=settings_of(recipe),
    )


def settings_of(recipe: Recipe) -> Settings:
    """The settings that a recipe gives. Raises RequestError: attention-unknown, setting, timesteps."""
    runtime = recipe.runtime
    return settings(runtime.attention, runtime.weights, runtime.compile, runtime.cache, recipe.request.timesteps)


def check_runtime(runtime: Runtime) -> None:
    """Raise RequestError for a name that does not exist."""
    if runtime.dtype is not None and runtime.dtype not in ITEMSIZE:
        near = dict.fromkeys((*did_you_mean(runtime.dtype, ITEMSIZE), "bfloat16", *ITEMSIZE))
        raise RequestError("dtype", "dtype", runtime.dtype, "is not a dtype", list(near))
    if runtime.device is not None and runtime.device not in DEVICES:
        raise RequestError("device", "device", runtime.device, "is not a device", DEVICES, [{"device": None}])


def check(plan: Plan, gpus: int | None = None) -> None:
    """Raise RequestError for the first rule that the plan breaks."""
    if found := broken(plan):
        raise found[0]
    if gpus is not None and gpus != plan.world_size:
        raise _product(plan, gpus)


def broken(plan: Plan) -> list[RequestError]:
    """Every rule that the plan breaks, the most basic first; with too many ranks nothing else is checked."""
    if plan.world_size > MAX_RANKS:
        return [RequestError("ranks", "", None, f"the degrees make {plan.world_size} ranks; limit: {MAX_RANKS}")]
    return registry.violations(plan)


def _product(plan: Plan, gpus: int) -> RequestError:
    degrees = plan.degrees
    spread = (f"{d.name} {d.text(degrees.value(d))}" for d in degrees.used() if not d.is_overlaid)
    factors = " x ".join(spread) or "no degree given"
    close = nearest_plans(plan, gpus)
    dropped = dict.fromkeys((*degrees.named(), *registry.BESIDE), None)
    problem = f"the degrees make {counted(plan.world_size, 'rank')} ({factors})"
    problem += "" if close else f"; no legal plan has {counted(gpus, 'rank')}"
    tries = [{**dropped, **p.degrees.named()} for p in close[:1]]
    return RequestError("gpus-product", "gpus", gpus, problem, ", ".join(str(p.degrees) for p in close), tries)


def degrees_of(parallel: Parallel) -> Degrees:
    """Degrees from flags or keys. Raises RequestError for a value that is not a degree."""
    degrees = Degrees(**given_degrees(parallel))
    refuse_idle_options(parallel, degrees)
    return degrees


def refuse_idle_options(parallel: Parallel, degrees: Degrees) -> None:
    """Raise RequestError (pipefusion-only) for options that change nothing without their strategy."""
    for strategy in registry.STRATEGIES:
        if not any(degree in degrees.used() for degree in strategy.degrees):
            for option in strategy.options:
                if (value := getattr(parallel, option.name)) is not None:
                    problem = f"is for --{strategy.degrees[0].name}, which is not used"
                    raise RequestError(strategy.idle_rule, option.name, value, problem, tries=[{option.name: None}])


def given_degrees(parallel: Parallel) -> dict[str, Value]:
    """Given degrees by field of Degrees. Raises RequestError for a value that is not a degree."""
    values = {degree.name: (degree, getattr(parallel, degree.name)) for degree in registry.DEGREES}
    given = {name: degree.parse(value) for name, (degree, value) in values.items() if value is not None}
    for shorthand in registry.SHORTHANDS:
        text = getattr(parallel, shorthand.name)
        if text is None:
            continue
        if twice := [name for name in shorthand.sets if name in given]:
            names = " and ".join(f"--{name}" for name in shorthand.sets)
            problem = f"says the same as --{twice[0]} {given[twice[0]]}; give --{shorthand.name}, or {names}"
            tries = [dict.fromkeys(twice), {shorthand.name: None}]
            raise RequestError(shorthand.rule, shorthand.name, text, problem, tries=tries)
        given |= shorthand.parse(text)
    return given


@contextmanager
def in_given_words(parallel: Parallel) -> Iterator[None]:
    """A block whose RequestErrors name the flags that the user wrote."""
    try:
        yield
    except RequestError as error:
        raise as_given(error, parallel) from error


def as_given(error: RequestError, parallel: Parallel) -> RequestError:
    """The error of a degree that was given by a shorthand, in the shorthand's words: --usp 3x3, not --ulysses 3."""
    for shorthand in registry.SHORTHANDS:
        if (text := getattr(parallel, shorthand.name)) is None or error.flag == shorthand.name:
            continue
        given = {name: str(value) for name, value in shorthand.parse(text).items()}
        tries = [one if isinstance(one, str) else _shortened(one, given, shorthand.name) for one in error.tries]
        flags = [f"--{name} {value}" for name, value in given.items()]
        problem, near = error.problem, error.nearest
        for words in (" ".join(flags), *flags):
            problem = problem.replace(words, f"--{shorthand.name} {text}")
            near = near.replace(words, f"--{shorthand.name} {text}") if isinstance(near, str) else near
        error = error.changed(tries=tries, problem=problem, nearest=near)
        if error.flag in given:
            whole = [] if isinstance(near, str) else [{error.flag: str(value)} for value in near]
            values = [str(_shortened(one, given, shorthand.name)[shorthand.name]) for one in whole]
            problem = f"its {error.flag} {error.value} {problem}"
            error = error.changed(flag=shorthand.name, value=text, problem=problem, nearest=values or near)
    return error


def _shortened(change: Change, given: Mapping[str, str], shorthand: str) -> Change:
    """A change of degrees that a shorthand sets, as a change of the shorthand."""
    if not given.keys() & change.keys() or change.get(shorthand, "") is None:
        return change
    parts = [change.get(name, value) or "1" for name, value in given.items()]
    others = {name: value for name, value in change.items() if name not in given}
    return {**others, shorthand: "x".join(parts)}


def order_of(names: list[str] | None, degrees: Degrees) -> tuple[str, ...]:
    """A full mesh order from the axes that were named. Raises RequestError (order)."""
    if not names:
        return AXES
    names = [name.strip() for name in names]
    known = dict.fromkeys(axis for name in names for axis in did_you_mean(name, AXES))
    missing = [axis for axis in AXES if axis not in known and degrees.size(axis) > 1]
    if fault := _order_fault(names, missing):
        near = ",".join([*known, *missing])
        nearest, tries = ([near], None) if near else ((), [{"order": None}])
        raise RequestError("order", "order", ",".join(names), fault, nearest, tries)
    return (*names, *(axis for axis in AXES if axis not in names))


def _order_fault(names: list[str], missing: list[str]) -> str:
    """The problem of a mesh order; "" if it is legal."""
    for name in names:
        if name not in AXES:
            return f"names {name or 'nothing'}; axes are: {', '.join(AXES)}"
        if names.count(name) > 1:
            return f"names {name} twice; every axis has one place"
    return f"leaves out {', '.join(missing)}, which more than one rank shares" if missing else ""


def with_heads(facts: ModelFacts, heads: int) -> ModelFacts:
    """The model with its attention cut into another number of heads. Raises RequestError (heads)."""
    inner = facts.transformer.heads * facts.transformer.head_dim
    if heads < 1 or inner % heads:
        problem = f"does not divide the {inner} channels of attention of {facts.name}"
        raise not_legal("heads", "heads", heads, problem, divisors(inner))
    return replace(facts, transformer=replace(facts.transformer, heads=heads, head_dim=inner // heads, kv_heads=None))


def check_count(flag: str, value: int) -> None:
    """Raise RequestError (gpus) for a number of GPUs below 1 or above MAX_RANKS."""
    if not 1 <= value <= MAX_RANKS:
        raise RequestError("gpus", flag, value, f"must be 1 to {MAX_RANKS}", [1 if value < 1 else MAX_RANKS])


def published_frames(recipe: Recipe, facts: ModelFacts) -> Recipe:
    """The recipe with 4k frames read as k latent frames, as published figures count them (80 frames are 20)."""
    stride, frames = facts.vae.stride_time, recipe.request.frames
    if frames is None or frames < 1 or frames % stride:
        return recipe
    return replace(recipe, request=replace(recipe.request, frames=frames - stride + 1))
