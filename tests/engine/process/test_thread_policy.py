"""Threads go down while they wait for cores, and come back when the cores are idle: from CPU times alone."""

import itertools
from collections.abc import Sequence

from dunlin.engine.process.thread_policy import CpuTimes, ThreadCountPolicy, ThreadLimits

LOOK_S = 0.25


class Machine:
    """`cores` cores, of which others use `others`; the engine's threads want a whole core each."""

    def __init__(self, choices: Sequence[int], cores: int, limits: ThreadLimits | None = None) -> None:
        self.policy = ThreadCountPolicy(choices, cores, limits)
        self.count = max(choices)
        self.times = CpuTimes(0.0, 0.0, 0.0, 0.0)
        self.policy.update(self.times)
        self._cores = cores

    def run(self, seconds: float, others: float = 0.0) -> list[int]:
        """The counts over that time. Who wants a core gets an equal share where there are too few."""
        counts = []
        for _ in range(round(seconds / LOOK_S)):
            wanted = self.count + others
            share = min(1.0, self._cores / wanted)
            times = self.times
            self.times = CpuTimes(
                times.now_s + LOOK_S,
                times.waited_s + LOOK_S * self.count * (1 - share),
                times.own_s + LOOK_S * self.count * share,
                times.busy_s + LOOK_S * wanted * share,
            )
            self.count = self.policy.update(self.times)
            counts.append(self.count)
        return counts


def test_alone_all_threads_compute() -> None:
    assert set(Machine([1, 2], 2).run(10.0)) == {2}


def test_beside_one_busy_process_one_of_two_threads_goes_within_a_second_and_stays_away() -> None:
    machine = Machine([1, 2], 2)
    assert machine.run(1.0, others=1.0)[-1] == 1
    assert set(machine.run(60.0, others=1.0)) == {1}


def test_they_come_back_when_the_core_is_idle_again() -> None:
    machine = Machine([1, 2], 2)
    machine.run(5.0, others=1.0)
    assert machine.run(1.0)[-1] == 2


def test_of_many_threads_only_as_many_go_as_cores_are_taken() -> None:
    machine = Machine(range(1, 17), 16)
    assert machine.run(5.0, others=2.0)[-1] == 14
    assert machine.run(5.0, others=9.0)[-1] == 8
    assert machine.run(5.0)[-1] == 16


def test_a_small_neighbour_changes_nothing() -> None:
    assert set(Machine([1, 2], 2).run(10.0, others=0.2)) == {2}


def test_a_wave_of_requests_changes_nothing() -> None:
    """A burst of the engine's own cluster: holding back a thread for half a second costs more than it."""
    machine = Machine([1, 2], 2)
    for _ in range(10):
        assert set(machine.run(4.0, others=0.25)) == {2}
        assert machine.run(2 * LOOK_S, others=1.0) == [2, 2]


def test_what_makes_threads_wait_for_long_takes_one_away() -> None:
    machine = Machine([1, 2], 2)
    assert machine.run(4.0, others=0.75)[-1] == 1


def test_more_threads_than_cores_go_down_to_the_cores() -> None:
    assert Machine(range(1, 9), 2).run(2.0)[-1] == 2


def test_only_the_choices_are_taken() -> None:
    machine = Machine([1, 16], 16)
    assert machine.run(1.0, others=2.0)[-1] == 1
    assert set(machine.run(4.0, others=2.0)) == {1}
    assert machine.run(5.0)[-1] == 16


def test_a_neighbour_that_comes_and_goes_is_tried_less_and_less_often() -> None:
    machine = Machine([1, 2], 2, ThreadLimits(hold_s=0.5, hold_most_s=4.0, trial_s=10.0))
    raised_s = []
    for _ in range(400):  # as soon as there are two threads it is back
        before = machine.count
        machine.run(LOOK_S, others=1.0 if before == 2 else 0.0)
        if machine.count > before:
            raised_s.append(machine.times.now_s)
    pauses = [later - earlier for earlier, later in itertools.pairwise(raised_s)]
    assert pauses == sorted(pauses)
    assert pauses[0] <= 3.0
    assert 4.0 <= pauses[-1] <= 6.0
    machine.run(20.0)
    assert machine.run(1.0, others=1.0)[-1] == 1
    assert machine.run(1.0)[-1] == 2, "after a long time with two threads the next trial comes soon"


def test_one_choice_is_no_choice() -> None:
    assert set(Machine([2], 2).run(5.0, others=2.0)) == {2}
