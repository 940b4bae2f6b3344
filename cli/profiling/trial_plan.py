"""Plans the measurement of an engine: decode, prefill and mixed steps over the sizes that occur. Pure."""

import random
from dataclasses import dataclass

from cli.profiling.trials import StepTrial, TrialRow


@dataclass(frozen=True, slots=True)
class TrialSizes:
    """The counts to try; those beyond the engine's slots or positions are left out."""

    rows: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
    contexts: tuple[int, ...] = (16, 96, 256, 640, 1500)
    chunks: tuple[int, ...] = (1, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
    prefixes: tuple[int, ...] = (0, 128, 512, 1024)
    row_counts: tuple[tuple[int, int], ...] = ((2, 16), (4, 16), (8, 16), (2, 64), (4, 64), (8, 64), (4, 120), (16, 30))
    """(prefill rows, tokens of each)"""
    mixed_rows: tuple[int, ...] = (1, 4, 8, 16, 32, 64)
    mixed_chunks: tuple[int, ...] = (8, 32, 100, 200, 440)
    sampled_rows: tuple[int, ...] = (1, 4, 16, 48)
    beats: int = 3000
    """The number of steps as they follow each other in service."""


def step_trials(sizes: TrialSizes, slots: int, positions: int, repeats: int = 8) -> list[StepTrial]:
    """The trials, in an order that spreads each regime over the whole time: a disturbance hits no regime alone."""
    longest = min(positions, slots) - repeats - 8
    contexts = sorted({context for context in sizes.contexts if context < longest})
    found = [
        StepTrial("decode", tuple(TrialRow(context - 1) for _ in range(rows)), repeats)
        for rows in sizes.rows
        for context in contexts
        if rows * (context + repeats + 8) <= slots
    ]
    found += [
        StepTrial("prefill", (TrialRow(prefix, chunk, decode=False),), repeats)
        for chunk in sizes.chunks
        for prefix in sizes.prefixes
        if prefix + chunk < longest
    ]
    found += [
        StepTrial("prefill", (TrialRow(0, chunk, decode=False),) * rows, repeats)
        for rows, chunk in sizes.row_counts
        if chunk < longest
    ]
    found += [
        StepTrial(
            "mixed", (TrialRow(prefix, chunk, decode=False), *(TrialRow(context - 1) for _ in range(rows))), repeats
        )
        for rows in sizes.mixed_rows
        for index, chunk in enumerate(sizes.mixed_chunks)
        for context in contexts[1:3]
        for prefix in sizes.prefixes[index % 2 : index % 2 + 1]
        if prefix + chunk < longest and rows * (context + repeats + 8) <= slots
    ]
    found += [
        StepTrial("sampled", (TrialRow(contexts[-1] // 2),) * rows, repeats, is_sampled=True)
        for rows in sizes.sampled_rows
        if contexts and rows * (contexts[-1] // 2 + repeats + 8) <= slots
    ]
    random.Random(0).shuffle(found)
    return found


def trial_sizes(is_cpu: bool, is_quick: bool) -> TrialSizes:
    """For the device of an engine."""
    if is_quick:
        return QUICK_SIZES
    return TrialSizes() if is_cpu else GPU_SIZES


def copy_lengths(slots: int) -> list[int]:
    """Lengths of sequences to copy to the host tier and back."""
    return [tokens for tokens in (1, 4, 16, 64, 128, 256, 512, 1024, 2048) if tokens <= slots // 2]


GPU_SIZES = TrialSizes(
    rows=(1, 2, 4, 8, 16, 32, 64, 128, 256),
    contexts=(64, 512, 2048, 8192),
    chunks=(16, 32, 64, 100, 128, 192, 256, 320, 384, 512, 700, 1024, 1500, 2048),
    prefixes=(0, 1024, 4096, 16384),
    row_counts=((2, 64), (4, 64), (8, 64), (4, 120), (16, 30), (4, 512), (16, 120)),
    mixed_rows=(1, 8, 32, 64, 128),
    mixed_chunks=(32, 100, 200, 448, 960, 1900),
    sampled_rows=(1, 16, 64, 128),
    beats=800,
)
"""A GPU is fed in larger steps, over longer texts."""
QUICK_SIZES = TrialSizes(
    rows=(1, 2, 4, 8, 16, 32),
    contexts=(32, 256),
    chunks=(1, 8, 32, 64, 128, 256),
    prefixes=(0, 256),
    row_counts=((2, 16), (4, 32)),
    mixed_rows=(1, 8, 32),
    mixed_chunks=(8, 64, 200),
    sampled_rows=(1, 8),
    beats=100,
)
"""Fewer sizes, for a first look and for tests."""
