"""A video autoencoder as data: its strides, and its convolutions in the order in which they run. No torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

PAST = 2
"""Earlier frames of its input that a causal convolution over three frames sees, and so remembers."""


class Layer(NamedTuple):
    """Input of a 3x3 convolution that looks beyond a strip of the frame, in one pass (one latent frame)."""

    channels: int
    first_frames: int
    """Frames in the pass of the first latent frame."""
    frames: int
    """Frames in every later pass."""
    scale: int
    """Rows of the input per latent row."""
    remembers: bool = True
    """Whether PAST frames of this input are kept for the next pass."""
    strided: bool = False
    """Whether the convolution halves height and width; then it sees a row after its strip and none before."""

    def frames_of(self, first: bool) -> int:
        """Frames in the pass of the first latent frame, or of a later one."""
        return self.first_frames if first else self.frames


class Half(NamedTuple):
    """The decoder or the encoder."""

    layers: tuple[Layer, ...]
    """Convolutions that need the edges of other strips, in order; those after an upsampling count before it."""
    outputs: int
    """Channels that the last convolution makes."""
    attention: int
    """Channels of the middle attention over each frame, which needs the keys and values of all strips."""
    inputs: int
    """Inputs of the largest convolution held at the peak."""


@dataclass(frozen=True)
class VaeFacts(ABC):
    """A video autoencoder, with strides in pixels or frames per latent cell. Each kind has a subclass."""

    latent_channels: int = 16
    stride_space: int = 8
    stride_time: int = 4
    """Frames that each latent frame but the first stands for."""
    params: int = 0

    @property
    @abstractmethod
    def decoder(self) -> Half: ...

    @property
    @abstractmethod
    def encoder(self) -> Half: ...
