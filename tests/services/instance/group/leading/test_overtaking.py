"""Which requests of a group start before an older one that waits for slots: few, and none that keeps it waiting."""

from typing import Any

from dunlin.messages.types import RequestClass
from tests.services.instance.bench import Attempt
from tests.services.instance.group.leading.scripted_group import ScriptedGroup

OLDER, LONG = 1, 2
"""What has slots, and what waits for them."""
SMALL = {"tokens": 20, "max_tokens": 4}
"""Of a request that is short enough to pass, in a group of 400 slots, and two are an eighth of those."""


def waiting(overtake: str = "shorter", **long: Any) -> tuple[ScriptedGroup, Attempt]:
    """A group of 400 slots, 194 of them taken, in which one waits that needs 250 and may grow to 260."""
    group = ScriptedGroup(200, 200, scheduler__overtake_policy=overtake, groups__chunk_tokens=400)
    group.place(OLDER, tokens=190, max_tokens=60)
    group.run(0.05)
    attempt = group.place(LONG, tokens=250, **{"max_tokens": 10, **long})
    return group, attempt


def started(group: ScriptedGroup) -> list[int]:
    """The requests that have slots."""
    return [each.sequence.place.request for each in group.spreads if each.is_live]


def test_small_ones_that_keep_coming_do_not_starve_a_long_one() -> None:
    group, long = waiting()
    small = []
    for request in range(3, 100):
        small.append(group.place(request, tokens=16, max_tokens=8))
        group.run(0.01)
    assert len(long.tokens) > 0
    assert small[0].tokens == small[0].expected


def test_those_that_pass_get_an_eighth_of_the_slots_at_most() -> None:
    group, _ = waiting()
    for request in range(3, 7):
        group.place(request, **SMALL)
        group.run(0.005)
    assert started(group) == [OLDER, 3, 4]


def test_one_of_nearly_its_length_does_not_pass() -> None:
    group, _ = waiting()
    group.place(3, tokens=30, max_tokens=4)
    assert started(group) == [OLDER]


def test_none_passes_by_default() -> None:
    group, _ = waiting("never")
    group.place(3, **SMALL)
    assert started(group) == [OLDER]


def test_none_passes_batch_work_and_batch_work_passes_none() -> None:
    group, _ = waiting()
    group.place(3, request_class=RequestClass.BATCH, **SMALL)
    assert started(group) == [OLDER]
    group, _ = waiting(request_class=RequestClass.BATCH)
    sequence = group.spreads[-1].sequence
    sequence.is_risen = True
    group.place(3, **SMALL)
    assert started(group) == [OLDER]


def test_one_that_members_could_not_hold_if_they_were_empty_keeps_nothing_waiting() -> None:
    group = ScriptedGroup(200, 200)
    group.lose(1)
    group.place(LONG, tokens=250, max_tokens=10)
    small = group.place(3, **SMALL)
    group.run(0.5)
    assert small.tokens == small.expected
