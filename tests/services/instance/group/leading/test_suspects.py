"""Blame for crashed engines in a group: who runs alone, at one member at a time, and who is poison."""

from dunlin.messages.dispatch import Continued, Poisoned, Returned
from dunlin.messages.group import GuestsLost
from dunlin.messages.types import i64
from services.instance.group.leading.spread import SpreadSequence
from services.instance.group.member_step import named_guests
from tests.services.instance.bench import Attempt
from tests.services.instance.group.leading.scripted_group import ScriptedGroup, exchanges, figures, member_address
from tests.services.instance.group.leading.scripted_member import GROUP


def crash(group: ScriptedGroup, *guests: int, exchange: int = 0) -> int:
    """Wait until a step names these guests and no other, and crash the engine of a member that computes it, or one of
    `exchange`; returns the exchange.
    """
    numbers = {(GROUP << 32) + guest for guest in guests}
    while not (found := [each for each in group.members.values() if each.queue and _is_of(each.queue[0], numbers)]):
        group.run(0.001)
    member = found[0]
    exchange = exchange or member.queue[0].exchange
    member.guests.clear()
    member.queue.clear()
    member.engine += 1
    member.say(GuestsLost(GROUP, None, exchange, i64(sorted(numbers))))
    member.say_ready()
    group.run(0.002)
    return exchange


def _is_of(step: object, numbers: set[int]) -> bool:
    return named_guests(step) == numbers  # type: ignore[arg-type]


def spread(group: ScriptedGroup, number: int) -> SpreadSequence:
    led = group.leader.led
    assert led is not None
    found = led.spreads.by_number((GROUP << 32) + number)
    assert found is not None
    return found


def start(*requests: int) -> tuple[ScriptedGroup, list[Attempt]]:
    group = ScriptedGroup(80, 80, groups__chunk_tokens=40, groups__policy="widest")
    return group, [group.place(request, 30, max_tokens=6) for request in requests]


def test_suspects_run_alone_one_after_the_other_until_they_are_past_the_crash() -> None:
    group, attempts = start(1, 2)
    crash(group, 1, 2)
    sequences = [spread(group, each).sequence for each in (1, 2)]
    assert [each.suspicion for each in sequences] == [1, 1]
    stops = [each.trial_stop for each in sequences]
    told = {each.request: (each.suspicion, each.trial_stop) for each in group.said(Continued)}
    assert told == {1: (1, stops[0]), 2: (1, stops[1])}, "their dispatcher may lose this leader"
    before = len(exchanges(group))
    group.run(3.0)
    computed = [[row for rows in each.values() for row in rows] for each in exchanges(group)[before:]]
    on_trial = [rows for rows in computed if any(stop <= stops[number - 1] for number, _, stop in rows)]
    assert on_trial
    assert all(len(rows) == 1 for rows in on_trial)
    assert any(len(rows) == 2 for rows in computed), "afterwards together"
    assert [each.suspicion for each in sequences] == [0, 0]
    assert [each.tokens for each in attempts] == [each.expected for each in attempts]
    assert group.is_quiet


def test_a_prompt_on_trial_is_computed_by_one_member_at_a_time() -> None:
    group, _ = start(1)
    crash(group, 1)
    before = len(exchanges(group))
    while spread(group, 1).sequence.trial_stop:
        group.run(0.001)
    rows = [[row for rows in each.values() for row in rows] for each in exchanges(group)[before:]]
    assert rows[0] == [(1, 0, 30)], "in one block, where both members have room"


def test_two_engines_crashed_alone_are_poison_and_no_other_is_blamed() -> None:
    group, attempts = start(1, 2)
    crash(group, 1, 2)
    crash(group, 1)
    assert not group.said(Poisoned)
    crash(group, 1)
    (poisoned,) = group.said(Poisoned)
    assert (poisoned.request, figures(poisoned.why)["crashes_alone"]) == (1, 2)
    assert group.parts.lifecycle.poisoned_total == 1
    group.run(3.0)
    goes_back = [each.suspicion for each in group.said(Returned) if each.request == 2]
    assert attempts[1].tokens == attempts[1].expected or goes_back == [1], "its members were lost too often"
    assert group.is_quiet


def test_engines_that_crash_in_one_exchange_count_as_one() -> None:
    group, _ = start(1)
    exchange = crash(group, 1)
    crash(group, 1, exchange=exchange)
    assert spread(group, 1).sequence.suspicion == 2
    assert not group.said(Poisoned)


def test_the_word_of_a_member_that_an_order_has_just_taken_away_counts() -> None:
    group = ScriptedGroup(80, 80, 80, groups__chunk_tokens=40, groups__policy="widest")
    group.place(1, 30, max_tokens=6)
    while not (found := [index for index in (1, 2) if group.at(index).queue]):
        group.run(0.001)
    step = group.at(found[0]).queue[0]
    group.order(*(member_address(index) for index in (0, 1, 2) if index != found[0]))
    assert spread(group, 1).sequence.suspicion == 0
    lost = GuestsLost(GROUP, None, step.exchange, i64(sorted(named_guests(step))))
    group.leader.on_said(0.0, member_address(found[0]), lost)
    assert spread(group, 1).sequence.suspicion > 0


def test_a_suspect_that_goes_back_is_one_elsewhere_and_starts_without_a_ring() -> None:
    group, _ = start(1)
    crash(group, 1)
    for _ in range(2):  # as often as members may be lost
        while not spread(group, 1).sequence.in_steps:
            group.run(0.001)
        group.at(spread(group, 1).blocks[0].member).lose_engine()
        group.run(0.002)
    assert [each.suspicion for each in group.said(Returned)] == [2]
    ring = ScriptedGroup(80, 80, groups__chunk_tokens=30, groups__ring=True)
    ring.place(1, 50, max_tokens=6, suspicion=2)
    ring.run(0.02)
    assert list(exchanges(ring)[0].values()) == [[(1, 0, 30)]], "no ring, at one member"
    ring.run(0.02)
    assert spread(ring, 1).sequence.suspicion == 2, "crashes alone stay counted"
