"""How many tokens may come later than their objective on purpose. Decides nothing."""

LATE_SHARE = 0.005
"""Of the tokens of interactive sequences: objectives are 99th percentiles, so a hundredth may be late. Half of it is
left to what predictions are off."""
SAVED_SHARE = 0.5
"""Of the rows of the largest step, as many tokens may be saved: what a quiet hour saves is soon used up."""


class MissAllowance:
    """Owns the number of tokens that may be late. Each token adds its share, and one that was late takes one away,
    whatever the cause: a process that is often late by chance has none to be late on purpose.
    """

    def __init__(self, max_running: int) -> None:
        self.tokens = 0.0
        self._most = SAVED_SHARE * max_running

    def on_tokens(self, tokens: int) -> None:
        """So many tokens of interactive sequences came."""
        self.tokens = min(self._most, self.tokens + LATE_SHARE * tokens)

    def on_late(self) -> None:
        """A token came later than its objective. What is owed is bounded as what is saved is."""
        self.tokens = max(-self._most, self.tokens - 1)
