"""The least time that a step could take on this machine, from its work and the machine's measured limits. Pure."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.engine.workloads import PlannedStep
from dunlin.model.config import ModelConfig
from dunlin.model.weight_layout import layer_blocks

READ_BYTES = 256 << 20
PRODUCT = (1024, 4096, 4096)
"""Rows, inputs, outputs of the product that shows the most operations per second."""
ROWS = (1, 16, 64, 512)
"""Tokens for which the linear layers are measured; between them their time is interpolated."""
LIMITS = ("read", "product", *(f"{what} {rows}" for what in ("linears", "head") for rows in ROWS))
_ITEM_BYTES = 2


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes and operations per second; seconds of the decoder layers' linears and of the head, by tokens."""

    read_bytes_s: float
    operations_s: float
    linears_s: Mapping[int, float]
    head_s: Mapping[int, float]

    @staticmethod
    def of(seconds: Mapping[str, float]) -> "Limits":
        """From the seconds of one run of each of `LIMITS`."""
        rows, inputs, outputs = PRODUCT
        by_rows = {what: {count: seconds[f"{what} {count}"] for count in ROWS} for what in ("linears", "head")}
        rate = 2 * rows * inputs * outputs / seconds["product"]
        return Limits(READ_BYTES / seconds["read"], rate, by_rows["linears"], by_rows["head"])


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a step cannot avoid: multiplications and additions, and bytes read."""

    operations: int
    read_bytes: int

    @staticmethod
    def of(config: ModelConfig, step: PlannedStep) -> "StepWork":
        """The linears of all tokens, causal attention, logits of the rows that sample; weights and KV read once."""
        layer = sum(block.items() for block in layer_blocks(config, 0) if len(block.shape) == 2) * config.layers
        head = config.vocab * config.hidden if any(step.sample) else 0
        seen = sum((stop - start) * (start + stop + 1) // 2 for start, stop in zip(step.start, step.stop, strict=True))
        attention = 4 * config.heads * config.head_dim * config.layers * seen
        kv_bytes = config.layers * config.slot_bytes(_ITEM_BYTES) * sum(step.stop)
        operations = 2 * layer * step.tokens + 2 * head * sum(step.sample) + attention
        return StepWork(operations, (layer + head) * _ITEM_BYTES + kv_bytes)


def roofline_s(config: ModelConfig, steps: Iterable[PlannedStep], limits: Limits) -> float:
    """Seconds of the steps if each ran at the speed of memory or of arithmetic, whichever it needs longer."""
    work = [StepWork.of(config, step) for step in steps]
    return sum(max(one.operations / limits.operations_s, one.read_bytes / limits.read_bytes_s) for one in work)


def linears_s(steps: Iterable[PlannedStep], limits: Limits) -> float:
    """Seconds of the steps' linear layers alone, as torch computes them."""
    return sum(
        _interpolated(limits.linears_s, step.tokens) + _interpolated(limits.head_s, sum(step.sample)) for step in steps
    )


def _interpolated(seconds: Mapping[int, float], rows: int) -> float:
    """Linear between the measured counts, proportional beyond the last; 0 for no rows."""
    if rows == 0:
        return 0.0
    counts: Sequence[int] = sorted(seconds)
    above = bisect_left(counts, rows)
    if above == len(counts):
        return seconds[counts[-1]] * rows / counts[-1]
    high = counts[above]
    if above == 0 or high == rows:
        return seconds[high]
    low = counts[above - 1]
    return seconds[low] + (seconds[high] - seconds[low]) * (rows - low) / (high - low)
