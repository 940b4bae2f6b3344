"""Rotary position embedding: frequencies by configuration, angles by absolute position."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from dunlin.model.rope_config import RopeConfig


def inverse_frequencies(config: RopeConfig, head_dim: int) -> Tensor:
    """Radians per position for each pair of dimensions that is turned, fp32."""
    turned = config.turned(head_dim)
    base = 1.0 / config.theta ** (torch.arange(0, turned, 2, dtype=torch.int64).float() / turned)
    scale = _SCALINGS.get(config.kind)
    return base if scale is None else scale(config, base, turned)


def _linear(config: RopeConfig, base: Tensor, turned: int) -> Tensor:
    return base / config.factor


def _llama3(config: RopeConfig, base: Tensor, turned: int) -> Tensor:
    """Llama 3.1: long waves are slowed by `factor`, short ones kept, those between blended."""
    wavelength = 2 * math.pi / base
    low = config.original_max_positions / config.low_freq_factor
    high = config.original_max_positions / config.high_freq_factor
    blend = (config.original_max_positions / wavelength - config.low_freq_factor) / (
        config.high_freq_factor - config.low_freq_factor
    )
    blended = (1 - blend) * base / config.factor + blend * base
    return torch.where(wavelength > low, base / config.factor, torch.where(wavelength < high, base, blended))


def _yarn(config: RopeConfig, base: Tensor, turned: int) -> Tensor:
    """YaRN (arXiv 2309.00071): dimensions that turn often are kept, those that turn rarely slowed by `factor`, between
    them a ramp.
    """
    low, high = (_dimension(config, rounds, turned) for rounds in (config.beta_fast, config.beta_slow))
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, turned - 1)
    high += 0.001 * (low == high)
    slowed = ((torch.arange(turned // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    kept = 1 - slowed
    return base / config.factor * (1 - kept) + base * kept


def _dimension(config: RopeConfig, rounds: float, turned: int) -> float:
    """The dimension that turns `rounds` times over the positions of the first training."""
    waves = math.log(config.original_max_positions / (rounds * 2 * math.pi))
    return turned * waves / (2 * math.log(config.theta))


def _longrope(config: RopeConfig, base: Tensor, turned: int) -> Tensor:
    return base / torch.tensor(config.factors, dtype=torch.float32)


_SCALINGS: dict[str, Callable[[RopeConfig, Tensor, int], Tensor]] = {
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}


def rotary_angles(frequencies: Tensor, positions: Tensor, factor: float = 1.0) -> Tensor:
    """Cosines and sines times `factor` for `positions` `[tokens]`: `[tokens, 2, 1, frequencies]` fp32."""
    turned = positions.float()[:, None, None] * frequencies
    angles = torch.stack((turned.cos(), turned.sin()), dim=1)
    return angles if factor == 1.0 else angles * factor


def apply_rotary(vectors: Tensor, turn: Tensor) -> Tensor:
    """Rotate `vectors` `[tokens, heads, dims]` by what `rotary_angles` gave; dimension i pairs with i + dims / 2."""
    cosines, sines = turn.unbind(1)
    left, right = vectors.float().chunk(2, dim=-1)
    turned = torch.cat((left * cosines - right * sines, right * cosines + left * sines), dim=-1)
    return turned.to(vectors.dtype)
