"""How long the exchanges that this instance led took lately, by the number of their tokens."""

FADING = 0.99
"""What is left of a longest time with each further exchange of its size."""


class ExchangeTimes:
    """Owns the longest time of each size: exchanges whose numbers of tokens have as many binary digits are of one size.

    It outlives groups: the next one computes with the same engine, on much the same machines.
    """

    def __init__(self) -> None:
        self._longest_s: dict[int, float] = {}

    def note(self, tokens: int, took_s: float) -> None:
        """An exchange of so many tokens took so many seconds."""
        size = tokens.bit_length()
        self._longest_s[size] = max(took_s, FADING * self._longest_s.get(size, 0.0))

    def longest_s(self, tokens: int, least_s: float) -> float:
        """The longest time of an exchange of this size, or of the next larger one that there was. Where there was none
        so large: the longest of all, or `least_s`, if that is more.
        """
        larger = [size for size in self._longest_s if size >= tokens.bit_length()]
        return self._longest_s[min(larger)] if larger else max([least_s, *self._longest_s.values()])
