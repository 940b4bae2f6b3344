"""Counts of what went round groups that this instance led. They only grow."""

from dataclasses import dataclass


@dataclass(slots=True)
class RingTotals:
    """`tokens` of prompts that went round; `released`: times that a member was free once a prompt was computed."""

    tokens: int = 0
    released: int = 0

    def report_fields(self) -> dict[str, int]:
        """The fields of a report."""
        return {"ring_tokens_total": self.tokens, "ring_releases_total": self.released}
