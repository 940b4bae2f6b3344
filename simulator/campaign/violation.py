"""The exception for a broken invariant."""


class Violation(Exception):
    """`invariant` (numbered in docs/campaigns.md) broke at `at_s` seconds; `text` names the objects."""

    def __init__(self, invariant: str, at_s: float, text: str) -> None:
        super().__init__(f"{invariant} at {at_s:.6f} s: {text}")
        self.invariant = invariant
        self.at_s = at_s
        self.text = text

    def __reduce__(self) -> "tuple[type[Violation], tuple[str, float, str]]":
        """It crosses from the process that runs a seed to the one that reports it."""
        return Violation, (self.invariant, self.at_s, self.text)
