"""Rotary position embedding: frequencies by configuration, angles by absolute position."""

import math

import torch
from torch import Tensor

from dunlin.model.config import RopeConfig


def inverse_frequencies(config: RopeConfig, head_dim: int) -> Tensor:
    """Radians per position for each pair of dimensions, `[head_dim / 2]` fp32."""
    base = 1.0 / config.theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    if config.kind == "linear":
        return base / config.factor
    if config.kind == "llama3":
        return _llama3(config, base)
    return base


def _llama3(config: RopeConfig, base: Tensor) -> Tensor:
    """Llama 3.1: long waves are slowed by `factor`, short ones kept, those between blended."""
    wavelength = 2 * math.pi / base
    low = config.original_max_positions / config.low_freq_factor
    high = config.original_max_positions / config.high_freq_factor
    blend = (config.original_max_positions / wavelength - config.low_freq_factor) / (
        config.high_freq_factor - config.low_freq_factor
    )
    blended = (1 - blend) * base / config.factor + blend * base
    return torch.where(wavelength > low, base / config.factor, torch.where(wavelength < high, base, blended))


def rotary_angles(frequencies: Tensor, positions: Tensor) -> Tensor:
    """Cosines and sines for `positions` `[tokens]`: `[tokens, 2, 1, head_dim / 2]` fp32."""
    turned = positions.float()[:, None, None] * frequencies
    return torch.stack((turned.cos(), turned.sin()), dim=1)


def apply_rotary(vectors: Tensor, turn: Tensor) -> Tensor:
    """Rotate `vectors` `[tokens, heads, head_dim]` by what `rotary_angles` gave; dimension i pairs with i +
    head_dim / 2."""
    cosines, sines = turn.unbind(1)
    left, right = vectors.float().chunk(2, dim=-1)
    turned = torch.cat((left * cosines - right * sines, right * cosines + left * sines), dim=-1)
    return turned.to(vectors.dtype)
