"""Analytic start of the codec: a fresh AutoencoderKLWan becomes a linear codec of about 27 dB, untrained.

* Residual and attention branches end in zeros and 1x1 shortcuts copy channels: every block is the identity.
* Stride-2 convolutions: space-to-depth followed by PCA. Time convolutions: mean and half difference of frame
  pairs (frame 0 skips them in the Wan layout, so it is coded as a still pair: differences 0).
* The heads (RMS norm, SiLU, convolution) are near-linear thanks to constant channels; their convolution is
  ridge-fitted.
* Up-convolutions act on a nearest-upsampled grid and cannot tell even from odd pixels, so no exact inverse
  exists; each is ridge-fitted (3x3 neighbourhood) to the encoder's features one level up.

Unused output channels keep small random weights and unused inputs zero weights, so both get gradients later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders import autoencoder_kl_wan as wan_vae
from torch import Tensor

from examples.train_demo.clips import free_clips, seeded
from examples.train_demo.codec import decode, encode

CONSTANT = 3.0  # value of constant channels
SPARE = 0.2  # factor on the random weights of unused channels
SAMPLES = 60_000  # rows in a PCA or ridge fit


@dataclass
class Down:
    """What one of the encoder's down-sampling steps was made to give."""

    features: Tensor  # [n, sums + differences, T, H, W]
    sums: int  # channels with spatial components (means over frame pairs)
    differences: int  # channels with half differences of frame pairs


def frames_of(x: Tensor) -> Tensor:
    """[B, C, T, H, W] -> [B*T, C, H, W]."""
    return x.transpose(1, 2).flatten(0, 1)


def rows_of(x: Tensor) -> Tensor:
    """[N, C, H, W] -> [N*H*W, C]."""
    return x.permute(0, 2, 3, 1).flatten(0, 2)


def some(n: int, rng: torch.Generator) -> Tensor:
    """Up to SAMPLES random indices below n."""
    return torch.randperm(n, generator=rng)[:SAMPLES]


def ridge(x: Tensor, y: Tensor, strength: float = 1e-3) -> tuple[Tensor, Tensor]:
    """Least-squares weights [a, b] and bias [b] of y [n, b] ~ x [n, a] @ weights + bias."""
    x_mean, y_mean = x.mean(0), y.mean(0)
    x_centred, y_centred = (x - x_mean).double(), (y - y_mean).double()
    normal = x_centred.T @ x_centred
    normal += strength * normal.diagonal().mean() * torch.eye(len(normal), dtype=normal.dtype)
    weights = torch.linalg.solve(normal, x_centred.T @ y_centred).float()
    return weights, y_mean - x_mean @ weights


def shrink(conv: Any) -> None:
    """Keep a fraction of a convolution's random weights, no bias."""
    conv.weight.mul_(SPARE)
    conv.bias.zero_()


def clear(conv: Any) -> None:
    """All zeros."""
    conv.weight.zero_()
    conv.bias.zero_()


def make_blocks_identity(vae: AutoencoderKLWan) -> None:
    """Silence all branches; shortcuts and the two 1x1 convolutions around the latent copy channels."""
    for m in vae.modules():
        if isinstance(m, wan_vae.WanResidualBlock):
            clear(m.conv2)
            if m.in_dim != m.out_dim:
                common = min(m.in_dim, m.out_dim)
                shrink(m.conv_shortcut)
                m.conv_shortcut.weight[:common] = 0
                m.conv_shortcut.weight[range(common), range(common)] = 1
        elif isinstance(m, wan_vae.WanAttentionBlock):
            clear(m.proj)
    for conv in (vae.quant_conv, vae.post_quant_conv):
        clear(conv)
        conv.weight[range(conv.out_channels), range(conv.out_channels)] = 1


def init_time_down(conv: Any, h: Tensor, sums: int, differences: int, constants: int) -> Tensor:
    """Haar transform of frame pairs: h [n, sums, 1 + 2k, H, W] -> [n, sums + differences, 1 + k, H, W]."""
    used = sums + differences + constants
    shrink(conv)
    conv.weight[:used] = 0
    conv.weight[range(sums), range(sums), 1] = conv.weight[range(sums), range(sums), 2] = 0.5
    conv.weight[range(sums, sums + differences), range(differences), 1] = -0.5
    conv.weight[range(sums, sums + differences), range(differences), 2] = 0.5
    conv.weight[range(sums + differences, used), range(sums + differences, used), 2] = 1
    a, b = h[:, :, 1::2], h[:, :, 2::2]
    still = torch.cat([h[:, :, :1], torch.zeros_like(h[:, :differences, :1])], 1)
    return torch.cat([still, torch.cat([(a + b) / 2, ((b - a) / 2)[:, :differences]], 1)], 2)


def init_down(resample: Any, h: Tensor, constants: int, rng: torch.Generator) -> Down:
    """Principal components of 2x2 blocks, then the time convolution where there is one."""
    conv, c_in = resample.resample[1], h.shape[1]
    n, height, width = h.shape[0], h.shape[3] // 2, h.shape[4] // 2
    blocks = F.unfold(frames_of(h), 2, stride=2).transpose(1, 2).flatten(0, 1)
    mean = blocks.mean(0)
    basis = torch.linalg.svd(blocks[some(len(blocks), rng)] - mean, full_matrices=False)[2]
    temporal = resample.mode == "downsample3d"
    sums = min(int(resample.dim * 0.66) if temporal else resample.dim - constants, len(mean))
    differences = min(sums, resample.dim - sums - constants) if temporal else 0
    used = sums + differences + constants
    projection = basis[:sums] / 2
    shrink(conv)
    conv.weight[:used] = 0
    conv.weight[:sums, :c_in, :2, :2] = projection.view(sums, c_in, 2, 2)
    conv.bias[:sums] = -projection @ mean
    conv.bias[sums + differences : used] = CONSTANT
    h = ((blocks - mean) @ projection.T).view(n, -1, height, width, sums).permute(0, 4, 1, 2, 3)
    if temporal:
        h = init_time_down(resample.time_conv, h, sums, differences, constants)
    return Down(h, sums, differences)


def init_encoder(encoder: Any, x: Tensor, rng: torch.Generator) -> list[Down]:
    """RGB -> components per level; the last level gets constant channels for the head's norm."""
    shrink(encoder.conv_in)
    encoder.conv_in.weight[:3] = 0
    encoder.conv_in.weight[range(3), range(3), 2, 1, 1] = 1
    resamples = [m for m in encoder.down_blocks if isinstance(m, wan_vae.WanResample)]
    downs: list[Down] = []
    for m in resamples:
        h = downs[-1].features if downs else x
        downs.append(init_down(m, h, constants=2 if m is resamples[-1] else 0, rng=rng))
    return downs


def hadamard(n: int) -> Tensor:
    """Matrix [n, n] of +-1 with orthogonal rows; n is a power of 2."""
    matrix = torch.ones(1, 1)
    while len(matrix) < n:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix


def head_inputs(conv: Any, run: Any) -> Tensor:
    """Rows [n*T*H*W, C] that reach the convolution while run() computes."""
    seen: list[Tensor] = []
    hook = conv.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    run()
    hook.remove()
    return rows_of(frames_of(torch.cat(seen, 2)))


def init_encoder_head(vae: AutoencoderKLWan, x: Tensor, features: Tensor) -> None:
    """Principal components of the features, mixed so that all latent channels carry equal variance."""
    conv, k = vae.encoder.conv_out, vae.config.z_dim
    rows = rows_of(frames_of(features))
    mean = rows.mean(0)
    basis = torch.linalg.svd(rows - mean, full_matrices=False)[2][:k]
    target = (rows - mean) @ (hadamard(k) @ basis).T
    weights, bias = ridge(head_inputs(conv, lambda: encode(vae, x)), target / target.std())
    conv.weight.zero_()
    conv.weight[:k, :, 2, 1, 1] = weights.T
    conv.bias[:k] = bias
    conv.bias[k:] = -8.0  # log-variance: sampling adds next to nothing


def fit(conv: Any, h: Tensor, target: Tensor, rng: torch.Generator) -> Tensor:
    """Ridge-fit a 3x3 convolution (last slice of 3x3x3) h -> target [N, C, H, W]; returns its output."""
    columns = F.unfold(h, 3, padding=1).transpose(1, 2).flatten(0, 1)
    rows = rows_of(target)
    pick = some(len(columns), rng)
    weights, bias = ridge(columns[pick], rows[pick])
    c_out, c_in = rows.shape[1], h.shape[1]
    kernel = weights.T.view(c_out, c_in, 3, 3)
    shrink(conv)
    conv.weight[:c_out] = 0
    (conv.weight[:, :, 2] if conv.weight.dim() == 5 else conv.weight)[:c_out, :c_in] = kernel
    conv.bias[:c_out] = bias
    return F.conv2d(h, kernel, bias, padding=1)


def init_time_up(conv: Any, dim: int, h: Tensor, down: Down) -> Tensor:
    """Inverse Haar transform: h [n, C, 1 + k, H, W] -> [n, sums, 1 + 2k, H, W]."""
    sums, differences = down.sums, down.differences
    shrink(conv)
    for first, sign in ((0, -1.0), (dim, 1.0)):  # output channels of the pair's first and second frame
        conv.weight[first : first + sums] = 0
        conv.weight[range(first, first + sums), range(sums), 2] = 1
        conv.weight[range(first, first + differences), range(sums, sums + differences), 2] = sign
    mean = h[:, :sums]
    half = F.pad(h[:, sums : sums + differences], (0,) * 7 + (sums - differences,))
    pairs = torch.stack([(mean - half)[:, :, 1:], (mean + half)[:, :, 1:]], 3).flatten(2, 3)
    return torch.cat([mean[:, :, :1], pairs], 2)


def init_decoder(vae: AutoencoderKLWan, x: Tensor, downs: list[Down], rng: torch.Generator) -> None:
    """Fit every convolution to the encoder features of its level, on the inputs it will actually see."""
    decoder, n = vae.decoder, len(x)
    z = encode(vae, x)
    h = fit(decoder.conv_in, frames_of(z), frames_of(downs[-1].features), rng)
    ups = [block.upsamplers[0] for block in decoder.up_blocks if block.upsamplers is not None]
    targets = [down.features for down in downs[-2::-1]] + [x]
    for up, down, target in zip(ups, downs[::-1], targets, strict=True):
        if up.mode == "upsample3d":
            video = h.reshape(n, -1, *h.shape[1:]).transpose(1, 2)
            h = frames_of(init_time_up(up.time_conv, up.dim, video, down))
        target = frames_of(target)
        conv = up.resample[1]
        if up is ups[-1]:  # RGB, -RGB and two constants in front of the head
            constants = torch.full_like(target[:, :2], CONSTANT)
            target = torch.cat([target, -target, constants], 1)[:, : conv.out_channels]
        h = fit(conv, F.interpolate(h, scale_factor=2.0, mode="nearest-exact"), target, rng)
    rows = head_inputs(decoder.conv_out, lambda: decode(vae, z[:8]))
    weights, bias = ridge(rows, rows_of(frames_of(x[:8])), 1e-5)
    decoder.conv_out.weight.zero_()
    decoder.conv_out.weight[:, :, 2, 1, 1] = weights.T
    decoder.conv_out.bias[:] = bias


@torch.no_grad()
def analytic_init(vae: AutoencoderKLWan, n: int = 24, seed: int = 7) -> None:
    """Set all weights from n rendered clips."""
    rng = seeded(seed)
    x = free_clips(n, rng)
    make_blocks_identity(vae)
    downs = init_encoder(vae.encoder, x, rng)
    init_encoder_head(vae, x, downs[-1].features)
    init_decoder(vae, x, downs, rng)
