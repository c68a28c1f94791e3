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
    """Whether PAST frames of it are kept for the next pass."""
    strided: bool = False
    """Whether it halves height and width; then it sees a row after its strip and none before."""

    def frames_of(self, first: bool) -> int:
        """Frames in the pass of the first latent frame, or of a later one."""
        return self.first_frames if first else self.frames


class Half(NamedTuple):
    """The decoder or the encoder."""

    layers: tuple[Layer, ...]
    """Every convolution that needs the edges of other strips, in order. Those after an upsampling count before it."""
    outputs: int
    """Channels that the last of them makes."""
    attention: int
    """Channels of the attention over each frame in its middle, which needs the keys and values of all strips."""
    inputs: int
    """How many inputs of the largest convolution are held at the peak."""


@dataclass(frozen=True)
class VaeFacts(ABC):
    """A video autoencoder. Strides in pixels or frames per latent cell. Each kind of autoencoder has a subclass."""

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
