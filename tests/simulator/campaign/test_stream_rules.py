"""The rules of one stream that the campaign's clients and those of a live run share."""

from dunlin.messages.types import FinishReason
from simulator.campaign.stream_rules import is_late, is_whole, wrong_tokens


def test_the_very_next_tokens_are_right_and_all_others_wrong() -> None:
    assert wrong_tokens([1, 2, 3], 1, [2, 3]) == ""
    assert wrong_tokens([1, 2, 3], 1, []) == ""
    assert wrong_tokens([1, 2, 3], 1, [2, 4]) == "gets [2, 4] where [2, 3] was due"
    assert wrong_tokens([1, 2, 3], 2, [3, 4]) == "gets [3, 4] where [3] was due"
    assert wrong_tokens([1, 2, 3], 0, [2])


def test_whole_is_the_whole_text_and_the_end_that_goes_with_it() -> None:
    assert is_whole(FinishReason.LENGTH, [1, 2], [1, 2])
    assert not is_whole(FinishReason.LENGTH, [1, 2], [1])
    assert not is_whole(FinishReason.STOP, [1, 2], [1, 2])


def test_a_deadline_is_over_by_the_fastest_clock_there_is() -> None:
    assert is_late(2.0, 2.0, 1.0)
    assert is_late(2.4, 2.0, 1.2)
    assert not is_late(2.4, 1.9, 1.2)
    assert not is_late(None, 99.0, 1.0)
