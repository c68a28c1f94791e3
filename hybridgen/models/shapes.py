"""Names and shapes of a module's tensors, as its class would make them. No torch."""

from __future__ import annotations

Shape = tuple[int, ...]


class Tensors(dict[str, Shape]):
    """Shapes of tensors by name."""

    def linear(self, name: str, out: int, into: int, *kernel: int, bias: bool = True) -> None:
        """Add a linear layer, or a convolution with this kernel."""
        self[f"{name}.weight"] = (out, into, *kernel)
        if bias:
            self[f"{name}.bias"] = (out,)

    def norm(self, name: str, channels: int, bias: bool = False) -> None:
        """Add a norm over channels."""
        self[f"{name}.weight"] = (channels,)
        if bias:
            self[f"{name}.bias"] = (channels,)
