"""I1 of one stream, by itself: what the campaign's clients and those of a live run both check. Pure."""

from collections.abc import Sequence

from dunlin.messages.types import FinishReason

LEGAL_ERRORS = ("given up after", "no instance has been able to serve")
"""How errors begin that a request may end with after a fault."""
WAIT_TOO_LONG = "s allowed"
"""Of a refusal by the longest wait that a dispatcher allows."""


def wrong_tokens(expected: Sequence[int], at: int, came: Sequence[int]) -> str:
    """What is wrong with tokens that come after the first `at` ones; empty: nothing."""
    due = list(expected[at : at + len(came)])
    return "" if list(came) == due else f"gets {list(came)} where {due} was due"


def is_whole(finish: FinishReason, expected: Sequence[int], tokens: Sequence[int]) -> bool:
    """Whether it ended with all of its tokens."""
    return finish is FinishReason.LENGTH and list(tokens) == list(expected)


def is_late(timeout_s: float | None, waited_s: float, fastest_clock: float) -> bool:
    """Whether a deadline was over; `fastest_clock`: seconds that any process's clock shows for one."""
    return timeout_s is not None and waited_s >= timeout_s / fastest_clock
