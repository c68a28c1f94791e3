"""hybridgen from Python: the same request as on the command line."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from hybridgen.engine.machine import choose, hardware_unused
from hybridgen.engine.outputs import Outputs
from hybridgen.engine.prepare import prepare
from hybridgen.planner.choose.fill import is_open
from hybridgen.recipe import library
from hybridgen.recipe.fields import compose
from hybridgen.recipe.fields import options as known_options
from hybridgen.recipe.resolve import resolve


def _as_given(name: str, value: Any) -> Any:
    """A tuple as a flag has it: 64x64, or names in a list."""
    if not isinstance(value, tuple):
        return value
    return list(value) if name == "order" else "x".join(map(str, value))


def generate(
    prompt: str,
    out: str | Path | None = None,
    *,
    recipe: str | Path | None = None,
    gpus: int | None = None,
    auto: bool = False,
    hardware: str | Path | None = None,
    latents: str | Path | None = None,
    preview: str | Path | None = None,
    overwrite: bool = False,
    quiet: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """Make a clip; the report as `hybridgen run --report` writes it, with the video's path under "output".

    `options` are the fields of a recipe, named as the flags are: model="demo", cfg=2, attn2d="3x3", steps=20.
    Pairs may be tuples: size=(64, 64). Ranks are new processes, and every call starts its own.
    With `auto`, or `gpus` and no degree, the planner chooses what is open, for `hardware` or this machine.

    Raises RequestError when the request cannot be served, RunFailed when a rank failed, TypeError for an unknown
    option.
    """
    names = {name for _, name, _ in known_options()}
    if unknown := sorted(options.keys() - names):
        close = difflib.get_close_matches(unknown[0], names, n=1)
        hint = f"did you mean {close[0]}?" if close else f"options are: {', '.join(sorted(names))}"
        raise TypeError(f"generate() has no option {unknown[0]}; {hint}")
    words = {name: _as_given(name, value) for name, value in options.items()}
    chosen = compose(library.located(Path(recipe)) if recipe else None, [], {**words, "prompt": prompt})
    if auto or (gpus is not None and is_open(chosen)):
        chosen, _, _ = choose(chosen, gpus, None if hardware is None else str(hardware))
    elif hardware is not None:
        raise hardware_unused(str(hardware))
    plan = resolve(chosen, gpus)

    def path(name: str | Path | None) -> Path | None:
        return None if name is None else Path(name)

    outputs = Outputs(path(out), path(latents), None, path(preview), overwrite)
    from hybridgen.engine.launch import launch

    # The caller may have run torch already, and its threads do not survive a fork: start from a clean process.
    report = launch(prepare(chosen, plan, outputs, quiet), start_method="forkserver")
    assert report is not None
    return report
