"""Which step is next, where some wait for transfers."""

from hypothesis import given
from hypothesis import strategies as st

from dunlin.engine.execution.step_queue import QueuedStep, StepQueue


def make_queue(landing: set[int], *steps: tuple[list[int], list[int]]) -> StepQueue:
    """Steps as (sequences, transfers that they wait for), numbered from 1."""
    queue = StepQueue(landing.__contains__)
    for number, (sequences, after) in enumerate(steps, 1):
        queue.append(QueuedStep(number, list(sequences), after))
    return queue


def order(queue: StepQueue) -> list[int]:
    numbers = []
    while (step := queue.pop_ready()) is not None:
        numbers.append(step.number)
    return numbers


def test_a_step_that_waits_holds_up_those_alone_that_share_a_sequence() -> None:
    landing = {7}
    queue = make_queue(landing, ([1], [7]), ([2], []), ([1, 3], []), ([4], [6]), ([3], []), ([5], []))
    assert order(queue) == [2, 4, 6], "3 shares a sequence with 1, and 5 with 3"
    landing.clear()
    assert order(queue) == [1, 3, 5]
    assert len(queue) == 0


@given(
    st.lists(st.tuples(st.lists(st.integers(1, 5), min_size=1, max_size=3), st.lists(st.integers(1, 4), max_size=2))),
    st.sets(st.integers(1, 4)),
)
def test_steps_of_one_sequence_keep_their_order(steps: list[tuple[list[int], list[int]]], landing: set[int]) -> None:
    queue = make_queue(landing, *steps)
    first = order(queue)
    for number in first:
        sequences, after = steps[number - 1]
        assert landing.isdisjoint(after)
        held = [earlier for earlier in range(1, number) if earlier not in first]
        assert not any(set(sequences) & set(steps[earlier - 1][0]) for earlier in held)
    for number in set(range(1, len(steps) + 1)) - set(first):
        sequences, after = steps[number - 1]
        earlier = [each for each in range(1, number) if each not in first]
        assert not landing.isdisjoint(after) or any(set(sequences) & set(steps[each - 1][0]) for each in earlier)
    landing.clear()
    assert sorted(first + order(queue)) == list(range(1, len(steps) + 1))


def test_rows_are_forgotten_and_an_empty_step_is_taken_out() -> None:
    queue = make_queue(set(), ([1, 2], []), ([2], []), ([3], []))
    assert [step.forget({2}) for step in queue] == [[2], [2], []]
    assert [(step.number, step.left) for step in queue.pop_empty()] == [(2, [2])]
    (first, third) = queue
    assert (first.sequences, first.left, third.forget(None)) == ([1], [2], [3])
