"""Memory and descriptors of processes over time, and whether they stay flat. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.engine.soak.engine_child import ProcessMemory

SETTLING_SHARE = 0.25
"""Of a run, before memory is compared: first uses of memory and of code."""
GROWTH_MIB = 16.0
"""From the first quarter's end to the end, by the fitted line: more is a leak."""
SAMPLES_LEAST = 8
"""With fewer samples after the first quarter nothing is said."""


@dataclass(slots=True)
class MemoryLog:
    """The samples of one process: (minute, what it used)."""

    name: str
    samples: list[tuple[float, ProcessMemory]] = field(default_factory=list)

    def add(self, minute: float, memory: ProcessMemory) -> None:
        """Note a sample."""
        self.samples.append((minute, memory))

    @property
    def settled(self) -> list[tuple[float, ProcessMemory]]:
        """The samples after the first quarter of the time."""
        last = self.samples[-1][0] if self.samples else 0.0
        return [each for each in self.samples if each[0] >= SETTLING_SHARE * last]

    def slopes(self) -> tuple[float, float]:
        """MiB an hour of own and of shared memory, fitted to what is settled."""
        minutes = [minute for minute, _ in self.settled]
        anonymous = slope(minutes, [memory.anonymous_mib for _, memory in self.settled])
        return 60 * anonymous, 60 * slope(minutes, [memory.shared_mib for _, memory in self.settled])

    def violations(self) -> list[str]:
        """What grew."""
        settled = self.settled
        if len(settled) < SAMPLES_LEAST:
            return []
        hours = (settled[-1][0] - settled[0][0]) / 60
        names = ("own memory", "shared memory")
        grown = [(name, rate * hours) for name, rate in zip(names, self.slopes(), strict=True)]
        found = [f"{self.name}: {name} grew by {mib:.1f} MiB" for name, mib in grown if mib > GROWTH_MIB]
        half = len(settled) // 2
        before, after = (max(each.descriptors for _, each in part) for part in (settled[:half], settled[half:]))
        return found + ([f"{self.name}: {before} descriptors, then {after}"] if after > before else [])


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Of the least squares' line; 0 where there is none."""
    if len(xs) < 2:
        return 0.0
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread if spread else 0.0
