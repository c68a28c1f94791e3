"""Facts of a model of the user's own, from a YAML file: enough to plan for it. No torch."""

from __future__ import annotations

import dataclasses
from dataclasses import fields, make_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Optional

from hybridgen.errors import RequestError
from hybridgen.models.cosmos.facts import CosmosTransformer
from hybridgen.models.cosmos3.facts import Cosmos3Transformer
from hybridgen.models.wan.facts import WanTransformer
from hybridgen.models.wan.vae_facts import VAE_21, WanVae
from hybridgen.plan.facts import ModelFacts, RequestDefaults, TransformerFacts
from hybridgen.plan.numbers import divisors, nearest, parse_pair
from hybridgen.plan.plan import ITEMSIZE
from hybridgen.recipe import source
from hybridgen.recipe.clip import clip_of
from hybridgen.recipe.fields import Request
from hybridgen.recipe.source import Source
from hybridgen.recipe.typed import Declared, Numbers, shown

RULES = {
    "model-facts": "A file of facts describes a model on one level of keys, each given once; it needs layers, heads, "
    "head_dim and ffn. Counts are whole numbers above 0, or 0 where that means none, or as many as usual. Size and "
    "frames must be what its VAE and patches can make, params no fewer than the blocks' matrices have.",
}

FILE = source.Kind("model-facts", "layers: N", "model-facts", "model-facts", "model-facts")

OF_MODEL = {key: key for key in ("name", "experts", "text_tokens", "text_params")}
OF_TRANSFORMER = {f.name: f.name for f in fields(TransformerFacts) if f.name != "given_params"}
OF_TRANSFORMER |= {"params": "given_params"}
OF_VAE = {"latent_channels": "latent_channels", "stride_space": "stride_space", "stride_time": "stride_time"}
OF_VAE |= {"vae_params": "params", "vae_base_dim": "base_dim"}
OF_REQUEST = {key: key for key in ("frames", "steps", "guidance", "fps", "dtype")}
"""Fields of the request's section by key of the file."""
USUAL = {"layers": 40, "heads": 40, "head_dim": 128, "ffn": 13824, "text_dim": 4096, "max_positions": 2**20, "name": ""}
"""Values of Wan for fields without a default, or with another one."""
OPEN = ("kv_heads", "width", "text_width", "params")
"""Keys that follow from others unless they are given; 0 leaves them open, too."""
USUAL |= dict.fromkeys(OPEN, 0)
NEEDED = ("layers", "heads", "head_dim", "ffn")
MAY_BE_ZERO = ("text_tokens", "text_params")
"""Keys that may be 0 although their default is not."""
WORDS = {"text_stream": ("", "joint", "own"), "dtype": tuple(ITEMSIZE)}
MOST, MOST_PARAMS = 10**9, 10**16
"""Most channels, layers or tokens, and most parameters: more than any model has."""


class Key(NamedTuple):
    """A key of the file: the section and field where it belongs, and a usual value, which has its type."""

    section: str
    field: str
    usual: Any


def read(path: Path) -> ModelFacts:
    """A model from a YAML file: the fields of TransformerFacts and of the tables above, all on one level.

    layers, heads, head_dim and ffn are needed; kv_heads, width, gated, cross_attention, text_stream, text_tokens,
    params, patch, the strides and the rest are Wan's unless given; `size` is the default size, as in 1280x720.
    Raises RequestError (model-facts).
    """
    file = source.read(path, FILE)
    values = file.as_(_declared())
    given: dict[str, dict[str, Any]] = {"model": {}, "transformer": {}, "vae": {}, "request": {}}
    for name, key in keys().items():
        if (value := getattr(values, name)) is not None:
            given[key.section][key.field] = None if name in OPEN and value == 0 else value
    if values.size is not None:
        given["request"]["width"], given["request"]["height"] = _size(file, values.size)
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
    """The family of the blocks that the file describes: Wan's, unless a key belongs to another."""
    if given.get("text_stream") == "own":
        return Cosmos3Transformer
    return CosmosTransformer if given.get("adaln") else WanTransformer


def keys() -> dict[str, Key]:
    """All keys except size, by name."""
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


@cache
def _declared() -> Any:
    """A dataclass of the file's legal keys, with their limits."""
    kinds = {name: _kind(name, key.usual) for name, key in keys().items()} | {"size": str}
    parts: list[Any] = [(name, kinds.pop(name)) for name in NEEDED]
    parts += [(name, Optional[kind], dataclasses.field(default=None)) for name, kind in kinds.items()]
    return make_dataclass("Facts", parts, bases=(Declared,))


def _kind(key: str, usual: Any) -> Any:
    """The type of a key with this usual value."""
    if key in WORDS:
        return Literal[WORDS[key]]
    if isinstance(usual, tuple):
        return tuple[tuple(Annotated[int, Numbers(1, MOST, True)] for _ in usual)]  # type: ignore[misc]
    if isinstance(usual, bool | str):
        return type(usual)
    least = 0 if usual == 0 or isinstance(usual, float) or key in MAY_BE_ZERO else 1
    most = MOST_PARAMS if key.endswith("params") else MOST
    return Annotated[type(usual), Numbers(least, most, isinstance(usual, int))]


def _size(file: Source, text: str) -> tuple[int, int]:
    usual = RequestDefaults()
    try:
        return parse_pair("size", text, "width x height")
    except RequestError as error:
        near = [f"{usual.width}x{usual.height}"]
        raise file.fault(("size",), "is not width x height", shown(text), near) from error


def _check_together(file: Source, facts: ModelFacts) -> None:
    """Raise RequestError for values that are legal one by one and do not fit each other."""
    transformer = facts.transformer
    if transformer.heads % transformer.key_heads:
        near = nearest(transformer.key_heads, divisors(transformer.heads))
        raise file.fault(("kv_heads",), f"must divide the {transformer.heads} heads", transformer.key_heads, near)
    own = transformer.text_stream == "own"
    least = transformer.layers * transformer.matrix_params * (2 if own else 1)
    least += 2 * transformer.vocabulary * transformer.hidden * own
    if transformer.params < least:
        problem = f"is too few: the matrices of the blocks alone have {least:,}"
        raise file.fault(("params",), problem, f"{transformer.params:,}", "no params, so that they are counted")
    try:
        clip_of(Request(), facts)
    except RequestError as error:
        if error.flag in file.content:
            raise file.fault((error.flag,), error.problem, error.value, error.nearest) from error
        problem = f"is not given, and Wan's {error.value} {error.problem}"
        raise file.fault((error.flag,), problem, None, error.nearest) from error
