"""Long prompts behind all others, and long prompts on instances of their own."""

from typing import Any

from dunlin.effects import Address, Joined
from dunlin.messages.dispatch import Place, Refusal, Refused
from dunlin.messages.door import Delta
from dunlin.messages.types import FinishReason
from tests.services.dispatcher.factories import A, B, Bench, client, member, messages, only, submit, target

LONG = 100


def bench(**placement: Any) -> Bench:
    named = {f"placement__{name}": value for name, value in {"long_tokens": LONG, **placement}.items()}
    return Bench(**named).fleet(member(A), member(B))


def test_each_length_has_its_own_instances() -> None:
    split = bench(pool_policy="by_length")
    placed = [target(split.give(client(n), submit(range(size))), Place) for n, size in enumerate((LONG, LONG + 1) * 2)]
    assert placed == [[A], [B], [A], [B]]


def test_without_a_length_that_is_long_there_are_no_pools() -> None:
    shared = bench(pool_policy="by_length", long_tokens=0)
    placed = [target(shared.give(client(n), submit(range(150))), Place) for n in range(2)]
    assert sorted(placed) == [[A], [B]]


def test_an_instance_that_is_left_alone_takes_all() -> None:
    alone = Bench(placement__pool_policy="by_length", placement__long_tokens=LONG).fleet(member(A))
    assert target(alone.give(client(1), submit(range(LONG + 1))), Place) == [A]
    assert target(alone.give(client(2), submit(range(9))), Place) == [A]


def test_a_full_pool_holds_up_none_of_the_other() -> None:
    split = bench(pool_policy="by_length", max_waiting_per_instance=1)
    placed = [target(split.give(client(n), submit(range(LONG))), Place) for n in range(12)]
    assert placed == [[A]] * 10 + [[]] * 2, "a thousand slots hold ten"
    assert target(split.give(client(12), submit(range(LONG + 1))), Place) == [B]


def test_nothing_smaller_overtakes_what_waits_for_room_in_its_pool() -> None:
    named = {"pool_policy": "by_length", "long_tokens": LONG, "max_waiting_per_instance": 1}
    split = Bench(**{f"placement__{name}": value for name, value in named.items()})
    split.fleet(member(A, free_slots=50), member(B))
    sizes = (5, 80, 5, LONG + 1)
    placed = [target(split.give(client(n), submit(range(size))), Place) for n, size in enumerate(sizes)]
    assert placed == [[A], [], [], [B]]


def test_long_prompts_wait_behind_short_ones_that_came_later() -> None:
    late = Bench(placement__queue_policy="short_first", placement__long_tokens=LONG)
    for n, size in enumerate((LONG + 1, 10, LONG + 2, 20)):
        late.give(client(n), submit(range(size)))
    late.give(A, Joined())
    assert [len(place.tokens) for place in messages(late.view(member(A)), Place)] == [10, 20, LONG + 1, LONG + 2]


def test_an_instance_that_cannot_run_it_is_not_asked_again_nor_one_of_the_other_pool() -> None:
    three = [A, B, Address("instance", "c", 13)]
    split = Bench(placement__pool_policy="by_length", placement__long_tokens=LONG, placement__long_share=0.3)
    split.fleet(*(member(each) for each in three))
    assert target(split.give(client(1), submit(adapter="aa")), Place) == [A]
    assert target(split.give(A, Refused(1, 1, Refusal.NO_ADAPTER)), Place) == [B]
    assert only(split.give(B, Refused(1, 2, Refusal.NO_ADAPTER)), Delta).finish is FinishReason.ERROR


def test_a_prompt_is_long_beyond_the_bound() -> None:
    late = Bench(placement__queue_policy="short_first", placement__long_tokens=LONG)
    for n, size in enumerate((LONG + 1, LONG)):
        late.give(client(n), submit(range(size)))
    late.give(A, Joined())
    assert [len(place.tokens) for place in messages(late.view(member(A)), Place)] == [LONG, LONG + 1]


def test_unless_it_is_asked_for_the_oldest_is_first_however_long() -> None:
    late = Bench(placement__long_tokens=LONG)
    for n, size in enumerate((LONG + 1, 10)):
        late.give(client(n), submit(range(size)))
    late.give(A, Joined())
    assert [len(place.tokens) for place in messages(late.view(member(A)), Place)] == [LONG + 1, 10]
