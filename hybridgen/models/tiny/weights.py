"""Random weights under which every part of a model matters, so that a fault anywhere moves the output far."""

from __future__ import annotations

import torch
from torch import nn


def unit_scale(model: nn.Module, seed: int) -> nn.Module:
    """Draw all parameters anew, in place, so that activations are of unit scale.

    Matrices N(0, 1 / fan_in), tables (modulation, positions, embeddings) N(0, 1), small biases, norms near 1.
    """
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if id(p) in tables or name.endswith(("scale_shift_table", "pos_embed")):
                p.copy_(noise)
            elif name.endswith("gamma") or (p.dim() == 1 and "norm" in name and name.endswith("weight")):
                p.copy_(1 + 0.2 * noise)
            elif p.dim() >= 2:
                p.copy_(noise / p[0].numel() ** 0.5)
            else:
                p.copy_(0.1 * noise)
    return model.eval()
