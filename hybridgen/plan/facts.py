"""What a checkpoint is, as data: enough to plan for it without loading it. No torch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

from hybridgen.plan.autoencoder import VaeFacts


class Sizes(NamedTuple):
    """Elements per token on a rank; tp divides a, k and f."""

    d: int
    """Channels of the hidden state."""
    a: int
    """Channels of this rank's heads: of Q, and of attention's output."""
    k: int
    """Channels of its K/V heads: of K, and of V."""
    f: int
    """Channels of its part of the feed-forward layer."""
    sides: int
    """Tensors of f channels around the activation: two, or three where it is gated."""
    wide: int
    """Size of fp32 in units of the plan's dtype."""


@dataclass(frozen=True)
class TransformerFacts(ABC):
    """One denoising transformer. Sizes in channels, tokens or layers.

    Each family has a subclass, which knows how its blocks are built: how many parameters they have, and how much they
    hold at once.
    """

    layers: int
    heads: int
    head_dim: int
    ffn: int
    text_dim: int
    kv_heads: int | None = None
    """Key/value heads; None means as many as query heads."""
    in_channels: int = 16
    out_channels: int = 16
    patch: tuple[int, int, int] = (1, 2, 2)
    freq_dim: int = 256
    width: int | None = None
    """Channels of the hidden state; None means heads x head_dim."""
    gated: bool = False
    """Whether the feed-forward layer has a third matrix that gates (SwiGLU)."""
    biases: bool = True
    """Whether the linear layers of the blocks have biases."""
    adaln: int = 0
    """Channels between the two layers that modulate each norm (AdaLN-LoRA); 0: a table for all tokens, or nothing."""
    cross_attention: bool = True
    text_width: int | None = None
    """Channels of the text that blocks read; None means as many as the hidden state has."""
    text_stream: Literal["", "joint", "own"] = ""
    """How text takes part in self-attention: "" not at all, "joint" as tokens that run through every block in every
    step (HunyuanVideo, CogVideoX), "own" through weights of its own, once a prompt (mixture of transformers,
    Cosmos3)."""
    vocabulary: int = 0
    """Vocabulary of a text stream with weights of its own: words with an embedding and an output layer."""
    max_positions: int = 1024
    """Positions along time, height and width that the rotary tables hold, in tokens."""

    head_norm: bool = False
    """Whether queries and keys are normed head by head; otherwise over all heads at once, which tp must add up."""
    token_time: bool = False
    """Whether every token has a timestep and a modulation of its own (conditioning frames are clean already)."""
    image_dim: int = 0
    """Channels of the image embedding that a second cross-attention reads; 0 means there is none."""
    image_positions: int = 0
    """Learned positions of the image embedding, in tokens, where a first and a last image are told apart."""

    given_params: int | None = None
    """Parameters of the whole transformer, where they are given and not counted from its shape."""

    @cached_property
    def hidden(self) -> int:
        return self.width or self.heads * self.head_dim

    @cached_property
    def key_heads(self) -> int:
        return self.kv_heads or self.heads

    @cached_property
    def patch_channels(self) -> int:
        """Channels of one token as the transformer reads it, conditions included."""
        return self.in_channels * math.prod(self.patch)

    @cached_property
    def prediction_channels(self) -> int:
        """Channels of one token of prediction, and of the latents that are denoised."""
        return self.out_channels * math.prod(self.patch)

    @cached_property
    def matrix_params(self) -> int:
        """Parameters of the matrices of one block that every video token is multiplied with in every step.

        The matrices for K and V of the text's cross-attention are left out: they are used once.
        """
        d, queries, keys = self.hidden, self.heads * self.head_dim, self.key_heads * self.head_dim
        cross = 2 * d * queries if self.cross_attention else 0
        return 2 * d * queries + 2 * d * keys + cross + (3 if self.gated else 2) * d * self.ffn

    @property
    def text_matrix_params(self) -> int:
        """Parameters of the matrices of one block for K and V of text and images, which cross-attention reads."""
        d, keys = self.hidden, self.key_heads * self.head_dim
        text = 2 * (self.text_width or d) * keys if self.cross_attention else 0
        return text + (2 * d * keys if self.image_dim else 0)

    @property
    def norm_params(self) -> int:
        """Parameters of the norms of queries and keys in one block."""
        queries, keys = self.heads * self.head_dim, self.key_heads * self.head_dim
        return (2 if self.cross_attention else 1) * (2 * self.head_dim if self.head_norm else queries + keys)

    @property
    def unmodulated_params(self) -> int:
        """Parameters of one block without those that modulate its norms by the time."""
        d, queries, keys = self.hidden, self.heads * self.head_dim, self.key_heads * self.head_dim
        attentions = 2 if self.cross_attention else 1
        biases = (attentions * (queries + 2 * keys + d) + self.ffn + d) if self.biases else 0
        image = 2 * keys + keys if self.image_dim else 0
        return self.matrix_params + self.norm_params + biases + self.text_matrix_params + image

    @property
    @abstractmethod
    def block_params(self) -> int:
        """Parameters of one block."""

    @property
    @abstractmethod
    def outer_params(self) -> int:
        """Parameters outside of the blocks."""

    @abstractmethod
    def most_held(self, s: Sizes) -> tuple[int, int]:
        """Elements per token at the fullest moment of a block, and those of times and modulations among them.

        Counted for eager execution. A caller keeps the hidden state that it gave to a block until the block is done,
        and a block what it has a name for: its last norm, what attention gave. In a model of 16 bits some steps make
        copies in fp32; in one of fp32 they make none.
        """

    @cached_property
    def params(self) -> int:
        """Parameters of the whole transformer."""
        if self.given_params is not None:
            return self.given_params
        return self.outer_params + self.layers * self.block_params


@dataclass(frozen=True)
class RequestDefaults:
    """What is generated where a request leaves it open. Guidance above 1 runs a second branch."""

    width: int = 1280
    height: int = 720
    frames: int = 81
    steps: int = 40
    guidance: float = 5.0
    guidance_2: float | None = None
    fps: int = 16
    negative_prompt: str = ""
    dtype: str = "bfloat16"
    example: str = "a lighthouse in a storm"
    """A prompt that the model understands."""


@dataclass(frozen=True)
class ModelFacts:
    """A model as the planner sees it."""

    name: str
    pipeline: str
    """diffusers' pipeline class; "" for a model that is planned for only."""
    source: str
    """Hub id or local folder that from_pretrained reads."""
    transformer: TransformerFacts
    vae: VaeFacts
    revision: str | None = None
    """Commit on the hub; None means the newest, or what is on this machine."""
    experts: int = 1
    boundary: float | None = None
    """Noise level at which the second expert takes over (share of the training timesteps)."""
    text_tokens: int = 512
    text_params: int = 5_680_000_000
    image: Literal["", "may", "must"] = ""
    """Whether a clip starts from an image: never, if one is given, or always."""
    last_image: Literal["", "may", "must"] = ""
    """Whether a clip may also end with a given image: never, if one is given, or always."""
    one_frame: bool = False
    """Whether the model makes images: clips of one frame."""
    video: bool = False
    """Whether a clip may continue a given video instead of starting from an image."""
    video_frames: int | None = None
    """Frames taken from the end of a given video; None means as many as the clip has, if there are that many."""
    encodes: Literal["", "first", "all"] = ""
    """What the autoencoder encodes where an image is given: nothing, the image, or a clip of full length."""
    image_tokens: int = 0
    """Tokens of the embedding of one image, in addition to the text."""
    image_params: int = 0
    """Parameters of the image encoder."""
    pads: bool = False
    """Whether latents are padded to whole patches, so that sizes need only be multiples of the autoencoder's stride."""
    guided_below_1: bool = False
    """Whether any guidance but 1 runs a second branch; otherwise only guidance above 1 does."""
    flow_shift: float | None = None
    """Shift of the scheduler's noise levels, where that tells models of equal shape apart."""
    native_flow: bool = False
    """Whether noise levels fall evenly, before the scheduler's shift, instead of by the scheduler's own table."""
    guarded: bool = False
    """Whether the licence asks for a guardrail: a checker of prompts and frames (Family.guardrail)."""
    defaults: RequestDefaults = field(default_factory=RequestDefaults)
    aliases: tuple[str, ...] = ()
    licence: str = ""
    origin: str = ""
    """Where these facts were read."""

    @property
    def size_multiple(self) -> tuple[int, int]:
        """Pixels that width and height must be multiples of."""
        _, patch_h, patch_w = (1, 1, 1) if self.pads else self.transformer.patch
        return self.vae.stride_space * patch_w, self.vae.stride_space * patch_h

    def latent_shape(self, width: int, height: int, frames: int) -> tuple[int, int, int, int]:
        """Shape (channels, frames, rows, columns) of a clip's latents; width and height in pixels."""
        vae = self.vae
        return (
            vae.latent_channels,
            (frames - 1) // vae.stride_time + 1,
            height // vae.stride_space,
            width // vae.stride_space,
        )

    def token_count(self, width: int, height: int, frames: int) -> int:
        """Number of tokens that the transformer sees for a clip."""
        _, t, h, w = self.latent_shape(width, height, frames)
        p_t, p_h, p_w = self.transformer.patch
        return -(-t // p_t) * -(-h // p_h) * -(-w // p_w)

    def branches(self, guidance: float) -> int:
        """Number of guidance branches: 2 (with and without the prompt) or 1."""
        return 2 if guidance > 1 or (self.guided_below_1 and guidance != 1) else 1

    def encoded_frames(self, frames: int, image: bool, video: int = 0) -> int:
        """Number of frames that the autoencoder encodes before a clip of `frames` frames is denoised.

        `video` is the number of frames of a given video; those that do not fill a latent frame are left out.
        """
        if video:
            taken = min(video, self.video_frames or frames)
            return (taken - 1) // self.vae.stride_time * self.vae.stride_time + 1
        return {"first": 1, "all": frames}.get(self.encodes, 0) if image else 0
