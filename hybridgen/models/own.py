"""Facts of a model of the user's own, from a YAML file: enough to plan for it. No torch."""

from __future__ import annotations

import difflib
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

from hybridgen import yaml_file
from hybridgen.degrees import parse_pair
from hybridgen.errors import RequestError
from hybridgen.models.facts import ModelFacts, RequestDefaults, TransformerFacts, VaeFacts

RENAMED = {"params": "given_params"}
"""Keys of the file whose field has another name."""
OF_MODEL = ("name", "experts", "text_tokens", "text_params")
OF_VAE = {"latent_channels": "latent_channels", "stride_space": "stride_space", "stride_time": "stride_time"}
OF_VAE |= {"vae_params": "params", "vae_base_dim": "base_dim"}
OF_REQUEST = ("frames", "steps", "guidance", "fps", "dtype")
NEEDED = ("layers", "heads", "head_dim", "ffn")
TEXT_STREAMS = ("", "joint", "own")


def read(path: Path) -> ModelFacts:
    """A model from a YAML file: the fields of TransformerFacts and of the tables above, all on one level.

    layers, heads, head_dim and ffn are needed; kv_heads, width, gated, cross_attention, text_stream, text_tokens,
    params, patch, the strides and the rest are Wan's unless given; `size` is the default size, as in 1280x720.
    Raises RequestError (model-facts).
    """
    content = _content(path)
    model, transformer, vae, request = _known_keys()
    given: dict[str, dict[str, Any]] = {"model": {}, "transformer": {}, "vae": {}, "request": {}}
    for key, value in content.items():
        if key == "size":
            given["request"]["width"], given["request"]["height"] = parse_pair(f"{path}: size", str(value), "a size")
            continue
        for section, known in (("model", model), ("transformer", transformer), ("vae", vae), ("request", request)):
            if key in known:
                name, default = known[key]
                given[section][name] = _typed(path, key, value, default)
                break
        else:
            every = {**model, **transformer, **vae, **request}
            close = difflib.get_close_matches(str(key), every, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known: size, {', '.join(sorted(every))}"
            raise RequestError("model-facts", f"--model-facts {path}: unknown key {key}; {hint}")
    if missing := [key for key in NEEDED if key not in content]:
        raise RequestError("model-facts", f"--model-facts {path} does not say {', '.join(missing)}")
    facts = TransformerFacts(**{"text_dim": 4096, "max_positions": 2**20, **given["transformer"]})
    _check(path, facts)
    return ModelFacts(
        **{"name": path.stem, **given["model"]},
        pipeline="",
        source=str(path),
        transformer=facts,
        vae=replace(VaeFacts(), **given["vae"]),
        defaults=replace(RequestDefaults(), **given["request"]),
        origin=str(path),
    )


def _content(path: Path) -> dict[Any, Any]:
    try:
        content = yaml_file.read(path).content
    except yaml_file.Unreadable as error:
        raise RequestError("model-facts", f"--model-facts {path}{error.at} {error.problem}") from error
    if not isinstance(content, dict):
        raise RequestError("model-facts", f"--model-facts {path} holds no keys; it starts with layers: N")
    return content


def _known_keys() -> tuple[dict[str, tuple[str, Any]], ...]:
    """Per section, key of the file -> (field, an example of its value)."""

    def examples(kind: Any, names: dict[str, str]) -> dict[str, tuple[str, Any]]:
        found = {f.name: (0 if f.default is MISSING else f.default) for f in fields(kind)}
        return {key: (name, found[name]) for key, name in names.items()}

    fields_of = {RENAMED_BACK.get(f.name, f.name): f.name for f in fields(TransformerFacts)}
    model = {"name": ("name", ""), **examples(ModelFacts, {key: key for key in OF_MODEL if key != "name"})}
    return (
        model,
        examples(TransformerFacts, fields_of),
        examples(VaeFacts, OF_VAE),
        examples(RequestDefaults, {key: key for key in OF_REQUEST}),
    )


RENAMED_BACK = {name: key for key, name in RENAMED.items()}


def _typed(path: Path, key: str, value: Any, example: Any) -> Any:
    """The value if it is of the example's type; numbers may be written as 14.3e9."""
    if isinstance(example, tuple):
        if isinstance(value, list) and len(value) == len(example) and all(isinstance(v, int) and v > 0 for v in value):
            return tuple(value)
        raise RequestError("model-facts", f"--model-facts {path}: {key} is {value!r} and must be like {list(example)}")
    if isinstance(example, bool | str):
        if isinstance(value, type(example)):
            return value
        word = "true or false" if isinstance(example, bool) else "text"
        raise RequestError("model-facts", f"--model-facts {path}: {key} is {value!r} and must be {word}")
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if isinstance(value, bool) or not 0 <= number < 1e16 or (isinstance(example, int) and number != int(number)):
        raise RequestError("model-facts", f"--model-facts {path}: {key} is {value!r} and must be a number")
    return int(number) if isinstance(example, int) else number


def _check(path: Path, facts: TransformerFacts) -> None:
    for key in NEEDED:
        if getattr(facts, key) < 1:
            raise RequestError("model-facts", f"--model-facts {path}: {key} must be above 0")
    if facts.heads % facts.key_heads:
        message = f"{facts.heads} heads are no multiple of {facts.key_heads} K/V heads"
        raise RequestError("model-facts", f"--model-facts {path}: {message}")
    if facts.text_stream not in TEXT_STREAMS:
        message = f'text_stream is {facts.text_stream!r} and must be "", joint or own'
        raise RequestError("model-facts", f"--model-facts {path}: {message}")
