"""Choices that look like chance and are functions of numbers, so that a run can be repeated."""

_MASK = (1 << 64) - 1


def chance(*numbers: int) -> float:
    """A number from 0 to 1, 1 excluded, that `numbers` determine (splitmix64)."""
    mixed = 0
    for number in numbers:
        mixed = (mixed + number + 0x9E3779B97F4A7C15) & _MASK
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        mixed ^= mixed >> 31
    return (mixed >> 11) / (1 << 53)
