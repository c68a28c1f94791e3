"""What a scheduler remembers from step to step, taken out of it and given to another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def remembered(scheduler: Any, x: Tensor) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What a scheduler remembers from step to step: tensors in the form of x, and plain values, by attribute.

    An entry of a list is named attribute.index. Tables of the schedule are left out: they are made anew.
    """
    tensors: dict[str, Tensor] = {}
    plain: dict[str, Any] = {}
    for name, value in vars(scheduler).items():
        if name == "_internal_dict":
            continue
        if _is_like(value, x):
            tensors[name] = value
        elif isinstance(value, list):
            plain[name] = [None if _is_like(one, x) else _plain(one) for one in value]
            tensors |= {f"{name}.{index}": one for index, one in enumerate(value) if _is_like(one, x)}
        elif value is None or isinstance(value, (bool, int, float, str)):
            plain[name] = value
    return tensors, plain


def remember(scheduler: Any, tensors: dict[str, Tensor], plain: dict[str, Any]) -> None:
    """Give a scheduler, whose timesteps are set, what remembered() has found."""
    for name, value in plain.items():
        setattr(scheduler, name, [_value(one) for one in value] if isinstance(value, list) else value)
    for name, tensor in tensors.items():
        attribute, _, index = name.partition(".")
        if index:
            getattr(scheduler, attribute)[int(index)] = tensor
        else:
            setattr(scheduler, attribute, tensor)


def _is_like(value: Any, x: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == x.shape


def _plain(value: Any) -> Any:
    """A plain value as JSON has it; a tensor of one number as its type and value."""
    if isinstance(value, Tensor):
        assert value.numel() == 1, f"a scheduler remembers a tensor {tuple(value.shape)}"
        return {"dtype": str(value.dtype).removeprefix("torch."), "value": value.item()}
    return value


def _value(plain: Any) -> Any:
    if isinstance(plain, dict):
        return torch.tensor(plain["value"], dtype=getattr(torch, plain["dtype"]))
    return plain
