"""Facts of a model of the user's own, from a YAML file: enough to plan for it. No torch."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from hybridgen.errors import RequestError
from hybridgen.models.cosmos.facts import CosmosTransformer
from hybridgen.models.cosmos3.facts import Cosmos3Transformer
from hybridgen.models.wan.facts import WanTransformer
from hybridgen.models.wan.vae_facts import VAE_21, WanVae
from hybridgen.plan.degrees import divisors, nearest, parse_pair
from hybridgen.plan.facts import ModelFacts, RequestDefaults, TransformerFacts
from hybridgen.plan.plan import ITEMSIZE
from hybridgen.recipe import key_file
from hybridgen.recipe.clip import clip_of
from hybridgen.recipe.fields import Request
from hybridgen.recipe.key_file import KeyFile, Numbers

OF_MODEL = {key: key for key in ("name", "experts", "text_tokens", "text_params")}
OF_TRANSFORMER = {f.name: f.name for f in fields(TransformerFacts) if f.name != "given_params"}
OF_TRANSFORMER |= {"params": "given_params"}
OF_VAE = {"latent_channels": "latent_channels", "stride_space": "stride_space", "stride_time": "stride_time"}
OF_VAE |= {"vae_params": "params", "vae_base_dim": "base_dim"}
OF_REQUEST = {key: key for key in ("frames", "steps", "guidance", "fps", "dtype")}
"""Per section, key of the file -> field."""
USUAL = {"layers": 40, "heads": 40, "head_dim": 128, "ffn": 13824, "text_dim": 4096, "max_positions": 2**20, "name": ""}
"""Wan's, for fields that have no default, or another one."""
NEEDED = ("layers", "heads", "head_dim", "ffn")
MAY_BE_ZERO = ("text_tokens", "text_params")
"""Beside those whose default is 0."""
WORDS = {"text_stream": ("", "joint", "own"), "dtype": tuple(ITEMSIZE)}
MOST, MOST_PARAMS = 10**9, 10**16
"""More channels, layers or tokens, and more parameters, than any model has."""


class Key(NamedTuple):
    """A key of the file: where it belongs, and what is usual, which has the type that it must have."""

    section: str
    field: str
    usual: Any


def read(path: Path) -> ModelFacts:
    """A model from a YAML file: the fields of TransformerFacts and of the tables above, all on one level.

    layers, heads, head_dim and ffn are needed; kv_heads, width, gated, cross_attention, text_stream, text_tokens,
    params, patch, the strides and the rest are Wan's unless given; `size` is the default size, as in 1280x720.
    Raises RequestError (model-facts).
    """
    file, known = key_file.read("--model-facts", "model-facts", path, "layers: N"), keys()
    given: dict[str, dict[str, Any]] = {"model": {}, "transformer": {}, "vae": {}, "request": {}}
    for name, value in file.content.items():
        if name == "size":
            given["request"]["width"], given["request"]["height"] = _size(file, value)
        elif name in known:
            section, field, usual = known[name]
            given[section][field] = _value(file, name, value, usual)
        else:
            raise file.unknown(str(name), ["size", *known])
    if missing := [key for key in NEEDED if key not in file.content]:
        raise file.fault("", f"does not say {', '.join(missing)}, which every model has")
    usual = {"text_dim": USUAL["text_dim"], "max_positions": USUAL["max_positions"]}
    facts = ModelFacts(
        **{"name": path.stem, **given["model"]},
        pipeline="",
        source=str(path),
        transformer=_blocks(given["transformer"])(**{**usual, **given["transformer"]}),
        vae=replace(VAE_21, **given["vae"]),
        defaults=replace(RequestDefaults(), **given["request"]),
        origin=str(path),
    )
    _check_together(file, facts)
    return facts


def _blocks(given: dict[str, Any]) -> type[TransformerFacts]:
    """The family whose blocks the file describes: Wan's, unless a key says what only others have."""
    if given.get("text_stream") == "own":
        return Cosmos3Transformer
    return CosmosTransformer if given.get("adaln") else WanTransformer


def keys() -> dict[str, Key]:
    """Every key but size."""
    sections: tuple[tuple[str, Any, dict[str, str]], ...] = (
        ("model", ModelFacts, OF_MODEL),
        ("transformer", TransformerFacts, OF_TRANSFORMER),
        ("vae", WanVae, OF_VAE),
        ("request", RequestDefaults, OF_REQUEST),
    )
    found = {}
    for section, kind, names in sections:
        defaults = {f.name: f.default for f in fields(kind)}
        for key, field in names.items():
            found[key] = Key(section, field, USUAL[key] if key in USUAL else defaults[field])
    return found


def _value(file: KeyFile, key: str, value: Any, usual: Any) -> Any:
    """The value, if it is of the usual one's type and legal."""
    if isinstance(usual, tuple):
        if not isinstance(value, list) or len(value) != len(usual):
            raise file.fault(key, f"{key} is {key_file.shown(value)} and must be as in {key}: {list(usual)}")
        return tuple(file.number(f"{key}.{n}", part, Numbers(1, MOST, True), usual[n]) for n, part in enumerate(value))
    if isinstance(usual, bool):
        return file.switch(key, value)
    if key in WORDS:
        return file.one_of(key, value, WORDS[key])
    if isinstance(usual, str):
        return file.text(key, value)
    least = 0 if usual == 0 or isinstance(usual, float) or key in MAY_BE_ZERO else 1
    most = MOST_PARAMS if key.endswith("params") else MOST
    return file.number(key, value, Numbers(least, most, isinstance(usual, int)), usual)


def _size(file: KeyFile, value: Any) -> tuple[int, int]:
    usual, text = RequestDefaults(), value if isinstance(value, str) else key_file.shown(value)
    try:
        return parse_pair("size", text, "width x height", f"{usual.width}x{usual.height}")
    except RequestError as error:
        raise file.fault("size", f"size: {error.value} {error.problem}; nearest: {error.nearest[0]}") from error


def _check_together(file: KeyFile, facts: ModelFacts) -> None:
    """Raise RequestError for values that are legal one by one and do not fit each other."""
    transformer = facts.transformer
    if transformer.heads % transformer.key_heads:
        near = ", ".join(map(str, nearest(transformer.key_heads, divisors(transformer.heads))))
        problem = f"kv_heads is {transformer.key_heads} and must divide the {transformer.heads} heads; nearest: {near}"
        raise file.fault("kv_heads", problem)
    own = transformer.text_stream == "own"
    least = transformer.layers * transformer.matrix_params * (2 if own else 1)
    least += 2 * transformer.vocabulary * transformer.hidden * own
    if transformer.params < least:
        problem = f"params is {transformer.params:,}, and the matrices of the blocks alone have {least:,}"
        raise file.fault("params", f"{problem}; nearest: no params, so that they are counted")
    try:
        clip_of(Request(), facts)
    except RequestError as error:
        key, nearest_values = error.flag, ", ".join(map(str, sorted(error.nearest, key=str)))
        given = f"{key} {error.value}" if key in file.content else f"does not say {key}, and Wan's {error.value}"
        problem = f"{given} {error.problem}; nearest: {nearest_values}"
        raise file.fault(key if key in file.content else "", problem) from error
