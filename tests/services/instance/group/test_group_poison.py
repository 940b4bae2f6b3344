"""A long prompt that crashes or hangs every engine that computes it: it ends, and costs few engines."""

import pytest

from dunlin.messages.dispatch import Poisoned, Returned
from simulator.campaign.poison import executing_guests
from tests.services.instance.bench import Attempt
from tests.services.instance.group.group_bench import GroupBench

POISON = 1


def bitten(*, first: int, ring: bool = False, hangs: bool = False) -> tuple[GroupBench, dict[int, Attempt], int]:
    """Two long requests and each member's own one; the engine crashes, or hangs, that computes the poison one from
    token `first` on. Returns how many were lost.
    """
    bench = GroupBench(3, slots=96, engine={"restart_s": 0.1}, groups__ring=ring)
    attempts = {POISON: bench.place(POISON, 120, max_tokens=20), 2: bench.place(2, 100, max_tokens=20)}
    attempts |= {3 + at: bench.place(3 + at, 8, at=at, group=0, max_tokens=20) for at in range(3)}
    lost = 0
    for _ in range(20000 if hangs else 4000):
        bench.run(0.001)
        for core, supervisor in zip(bench.cores, bench.supervisors, strict=True):
            step = core.group_member.steps.running
            rows = step.rows if step is not None and executing_guests(core) else []
            poisoned = [row for row in rows if row.guest.opened.request == POISON and row.covered.stop > first]
            if not poisoned or supervisor.engine in supervisor.ended or supervisor.engine.is_stuck:
                continue
            lost += 1
            if hangs:
                supervisor.engine.is_stuck = True
            else:
                supervisor.crash(11)
    return bench, attempts, lost


@pytest.mark.parametrize(("first", "ring"), [(0, False), (0, True), (60, False), (60, True), (119, True), (120, False)])
def test_it_stops_and_the_others_hear_nothing_of_it(first: int, ring: bool) -> None:
    bench, attempts, lost = bitten(first=first, ring=ring)
    (poisoned,) = [each for each in attempts[POISON].heard if isinstance(each, Poisoned)]
    assert poisoned.why is not None
    assert lost <= 3 + 2, "all members once, then one at a time"
    for number, attempt in attempts.items():
        assert number == POISON or attempt.tokens == attempt.expected
    bench.check_empty()


def test_one_that_hangs_engines_is_blamed_on_nobody_and_goes_back_after_three_losses() -> None:
    bench, attempts, lost = bitten(first=0, hangs=True)
    (returned,) = [each for each in attempts[POISON].heard if isinstance(each, Returned)]
    assert returned.suspicion == 0
    assert lost <= 3 * 3, "all members, three times"
    for number, attempt in attempts.items():
        assert number == POISON or attempt.tokens == attempt.expected
    bench.check_empty()
