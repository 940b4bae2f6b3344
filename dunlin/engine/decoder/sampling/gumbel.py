"""Gumbel noise as a hash of (key, token), and the token with the greatest sum of score and noise.

Most tokens need no noise: only those are looked at that can win.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))
_MASK = (1 << 64) - 1
_UNUSED_BITS, _LAST_SHIFT = np.uint64(12), np.uint64(31)
LEADERS = 1024
"""About so many tokens of the highest scores are looked at first; of no more tokens than that all are looked at."""
SAMPLED = 4096
"""Tokens by which it is guessed which scores are high."""


def noise_key(seed: int, choice: int, position: int) -> int:
    """The hash key of one choice's noise: each part is mixed in before the next, so they cannot cancel."""
    state = 0
    for part in (seed, choice, position):
        state = _mix_int((state + part * int(_GOLDEN) + 1) & _MASK)
    return state


def gumbel_noise(key: int, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """The noise of `tokens`."""
    with np.errstate(over="ignore"):
        return _noise_of(_hash_bits(key, (tokens.astype(np.uint64) + np.uint64(1)) * _GOLDEN))


def noisy_argmax(scores: NDArray[np.float64], key: int) -> int:
    """The token with the greatest score (-inf: excluded) plus noise; the first of two that are equal."""
    tokens = np.flatnonzero(scores > -math.inf)
    if len(tokens) > LEADERS:
        tokens = _contenders(scores, key)
    return int(tokens[(scores[tokens] + gumbel_noise(key, tokens)).argmax()])


def _contenders(scores: NDArray[np.float64], key: int) -> NDArray[np.int64]:
    """The tokens that may win, in order: those of the highest scores, and others whose noise is as great as the lead.

    Another token's score is at most `bound`, so it needs noise of at least `lead`: its hash is beyond a threshold,
    which is compared without a logarithm.
    """
    bound = _high_score(scores)
    leaders = np.flatnonzero(scores > bound)
    if len(leaders) < LEADERS // 4:  # many scores are equal
        leaders = np.union1d(leaders, np.flatnonzero(scores == bound)[:LEADERS])
    lead = float((scores[leaders] + gumbel_noise(key, leaders)).max() - bound)
    if not math.isfinite(lead):
        return np.flatnonzero(scores > -math.inf)
    # A little less, for what rounding may add.
    needed = math.exp(-math.exp(1e-9 - lead)) * (1 - 1e-12)
    bits = _hash_bits(key, _steps(len(scores)))
    others = np.flatnonzero(bits >= np.uint64(max(0, int(needed * 2.0**52) - 2)))
    return np.union1d(leaders, others)


def _high_score(scores: NDArray[np.float64]) -> float:
    """A score that about `LEADERS` tokens exceed, by a sample of them."""
    sample = scores[:: max(1, len(scores) // SAMPLED)]
    place = min(len(sample) - 1, LEADERS * len(sample) // len(scores))
    return float(np.partition(sample, len(sample) - 1 - place)[len(sample) - 1 - place])


@lru_cache(maxsize=4)
def _steps(vocabulary: int) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        return np.asarray(np.arange(1, vocabulary + 1, dtype=np.uint64) * _GOLDEN)


def _hash_bits(key: int, steps: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """52 random bits of each token."""
    with np.errstate(over="ignore"):
        mixed = steps + np.uint64(key)
        shifted = np.empty_like(mixed)
        for shift, factor in _MIX:
            mixed ^= np.right_shift(mixed, shift, out=shifted)
            mixed *= factor
        mixed ^= np.right_shift(mixed, _LAST_SHIFT, out=shifted)
        mixed >>= _UNUSED_BITS
    return mixed


def _noise_of(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    # The bits and a half: never 0, never 1.
    uniform = (bits.astype(np.float64) + 0.5) * 2.0**-52
    return np.asarray(-np.log(-np.log(uniform)))


def _mix_int(value: int) -> int:
    for shift, factor in _MIX:
        value = ((value ^ (value >> int(shift))) * int(factor)) & _MASK
    return value ^ (value >> 31)
