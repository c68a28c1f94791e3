"""A plan: the frozen choice of degrees and mesh order for one clip of one model. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from hybridgen.plan.degrees import Degrees
from hybridgen.plan.facts import ModelFacts
from hybridgen.plan.layout import Layout, TokenShards, split_rows
from hybridgen.plan.settings import Settings

ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}
SHORT_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
FP32 = ITEMSIZE["float32"]
"""Bytes of one element that stays in fp32 whatever the dtype: latents, log-sum-exp, sums of norms."""


@dataclass(frozen=True)
class Clip:
    """What is to be made, as far as cost and legality depend on it; sizes in pixels and frames."""

    width: int
    height: int
    frames: int
    steps: int
    guidance: float
    """Guidance scale of the first expert; above 1 every step runs a second branch."""
    guidance_2: float | None = None
    """Guidance scale of the second expert; None means that of the first."""
    fps: int = 16
    image: bool = False
    """Whether the clip starts from a given image."""
    last_image: bool = False
    """Whether the clip ends with a given image."""
    video: bool = False
    """Whether the clip continues a given video."""
    encoded_frames: int = 0
    """Conditioning frames that the autoencoder encodes before denoising: 0, or 4 n + 1."""

    @property
    def guidances(self) -> tuple[float, float]:
        """Guidance scales of the first and the second expert."""
        return self.guidance, self.guidance if self.guidance_2 is None else self.guidance_2


@dataclass(frozen=True)
class Plan:
    """Everything that all ranks must agree on before they start; the shapes of all messages follow from it."""

    facts: ModelFacts
    clip: Clip
    degrees: Degrees
    order: tuple[str, ...] = ()
    """Every axis of the mesh once, slowest first; empty means the default order, which is filled in."""
    dtype: str = "bfloat16"
    vae_dtype: str = "float32"
    """The autoencoder's dtype; runs have fp32, as diffusers' own examples do."""
    options: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Given options of strategies, by name; options of strategies that are not used change nothing."""
    stages: tuple[int, ...] = ()
    """PipeFusion: blocks of every stage; empty means as even as possible."""
    settings: Settings = Settings()
    """Attention, weights, compiling, caching and few steps, where they are not as `run` does them unasked."""
    text_lengths: tuple[int, ...] = ()
    """Text tokens of every branch; empty means as many as the facts say in each."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", self.order or self.degrees.default_order)

    def option(self, name: str) -> int:
        """The value of a strategy's option: as given, or its default."""
        given = self.options.get(name)
        return self.degrees.options[name][0].default(self) if given is None else given

    def with_options(self, **values: int) -> Plan:
        """The plan with these options of strategies."""
        return replace(self, options={**self.options, **values})

    @cached_property
    def layout(self) -> Layout:
        return Layout(self.degrees, self.order)

    @property
    def world_size(self) -> int:
        return self.degrees.world

    @property
    def exact(self) -> bool:
        """Whether the result differs from one rank's by rounding only."""
        return self.exact_split and self.settings.exact

    @cached_property
    def exact_split(self) -> bool:
        """Whether spreading the clip over ranks changes it by rounding only."""
        return all(degree.exact is None or degree.exact(self) for degree in self.degrees.used())

    @cached_property
    def tokens(self) -> TokenShards:
        clip = self.clip
        count = self.facts.token_count(clip.width, clip.height, clip.frames)
        patches = self.option("patches") if self.degrees.pipefusion > 1 else 1
        return TokenShards(count, self.degrees.sequence, patches)

    @cached_property
    def latent_shape(self) -> tuple[int, int, int, int]:
        """Shape of the clip's latents: (channels, frames, rows, columns)."""
        return self.facts.latent_shape(self.clip.width, self.clip.height, self.clip.frames)

    @property
    def state_size(self) -> int:
        """Elements of the state (latents or prediction) on one rank: all latents, or those of its own tokens."""
        if self.degrees.sequence * self.tokens.patches == 1:
            return math.prod(self.latent_shape)
        return self.tokens.local_size * self.facts.transformer.prediction_channels

    @property
    def itemsize(self) -> int:
        """Bytes of one element in the transformer's dtype."""
        return ITEMSIZE[self.dtype]

    @cached_property
    def branches(self) -> int:
        """Number of guidance branches of a step: 2 (with and without the prompt) or 1."""
        return self.facts.branches(self.clip.guidance)

    @cached_property
    def own_branches(self) -> int:
        """Number of guidance branches that one rank runs."""
        return -(-self.branches // self.degrees.over("branches"))

    @property
    def context_tokens(self) -> int:
        """Tokens that cross-attention reads: those of the text, and those of embedded images."""
        return self.facts.text_tokens + self.picture_tokens

    @property
    def picture_tokens(self) -> int:
        """Tokens of the embedded images, where there is a cross-attention to them."""
        pictures = (self.clip.image + self.clip.last_image) * bool(self.facts.transformer.image_dim)
        return pictures * self.facts.image_tokens

    def own_texts(self, rank: int) -> tuple[int, ...]:
        """Text tokens of the branches that a rank runs."""
        lengths = self.text_lengths or (self.facts.text_tokens,) * self.branches
        first = self.layout.branch_index(rank) * self.own_branches
        return lengths[first : first + self.own_branches]

    @property
    def passes(self) -> int:
        """Forward passes of a rank in the whole request."""
        return self.clip.steps * self.own_branches

    @cached_property
    def stage_sizes(self) -> tuple[int, ...]:
        """Blocks of every PipeFusion stage; without PipeFusion one stage has them all."""
        stages = self.stages if self.degrees.pipefusion > 1 else ()
        return stages or tuple(split_rows(self.facts.transformer.layers, self.degrees.pipefusion))

    def parallel(self) -> dict[str, str]:
        """Degrees and their options as flags and recipe keys; default values are left out."""
        named = self.degrees.named()
        if self.stages and self.degrees.pipefusion > 1:
            named["pipefusion"] += f":{','.join(map(str, self.stages))}"
        named |= self.given_options()
        if self.order != self.degrees.default_order:
            named["order"] = ",".join(axis for axis in self.order if self.degrees.size(axis) > 1)
        return named

    def used_options(self) -> dict[str, int]:
        """Options of the strategies in use, by name."""
        return {option.name: self.option(option.name) for option in self.degrees.used_options()}

    def given_options(self) -> dict[str, str]:
        """Options of the strategies in use that are not as by default, as flags and recipe keys."""
        usual = {option.name: option.default(self) for option in self.degrees.used_options()}
        return {name: str(value) for name, value in self.used_options().items() if value != usual[name]}

    def blocks(self, rank: int) -> range:
        """The transformer's blocks that a rank runs: those of its PipeFusion stage, which are consecutive."""
        if self.degrees.pipefusion == 1:
            return range(self.facts.transformer.layers)
        stage = self.layout.coordinate(rank, "pipefusion")
        start = sum(self.stage_sizes[:stage])
        return range(start, start + self.stage_sizes[stage])

    def is_last_stage(self, rank: int) -> bool:
        """Whether a rank holds the last blocks, and so makes predictions and the scheduler's steps."""
        return self.blocks(rank).stop == self.facts.transformer.layers

    @cached_property
    def heads(self) -> tuple[int, int]:
        """Number of query heads and K/V heads of one rank before Ulysses splits them further."""
        transformer, tp = self.facts.transformer, self.degrees.tp
        return transformer.heads // tp, max(transformer.key_heads // tp, 1)

    @cached_property
    def attention_heads(self) -> tuple[int, int]:
        """Number of query heads and K/V heads that attention sees on one rank."""
        heads, key_heads = self.heads
        split = self.degrees.over("heads")
        return heads // split, max(key_heads // split, 1)

    @cached_property
    def attention_tokens(self) -> int:
        """Tokens of one rank's attention before K/V is exchanged: those of its ulysses group, padding included."""
        return self.tokens.local_size * self.degrees.over("heads")

    @property
    def key_value_block(self) -> int:
        """Bytes of K and V that one rank of a cp group holds before the exchange."""
        return 2 * self.attention_tokens * self.attention_heads[1] * self.facts.transformer.head_dim * self.itemsize
