"""What becomes of KV under pressure."""

from dunlin.policies.pressure import Candidate, recompute, spill


def test_a_spill_keeps_it_and_says_what_it_saves() -> None:
    choice = spill(Candidate(computed_tokens=30, kept_tokens=10))
    assert choice.spills
    assert (choice.instead.option, choice.instead.reason) == ("recompute", "30 tokens are computed already")


def test_recomputing_drops_it() -> None:
    choice = recompute(Candidate(computed_tokens=30, kept_tokens=30))
    assert not choice.spills
    assert choice.instead.option == "spill"
