"""What becomes of KV under pressure."""

from dunlin.policies.preemption import PREEMPTION_MODES, PreemptionCandidate, recompute, spill, swap


def test_a_spill_keeps_it_and_says_what_it_saves() -> None:
    choice = spill(PreemptionCandidate(computed_tokens=30, kept_tokens=10))
    assert choice.spills
    assert (choice.rejected.option, choice.rejected.reason) == ("recompute", "30 tokens are computed already")


def test_recomputing_drops_it() -> None:
    choice = recompute(PreemptionCandidate(computed_tokens=30, kept_tokens=30))
    assert not choice.spills
    assert choice.rejected.option == "spill"


def test_a_swap_keeps_it_too() -> None:
    assert swap(PreemptionCandidate(30, 10)) == spill(PreemptionCandidate(30, 10))
    assert PREEMPTION_MODES["swap"] is swap
