"""Long prompts behind all others, and long prompts on instances of their own."""

from typing import Any

from dunlin.effects import Joined
from dunlin.messages.dispatch import Place
from tests.services.dispatcher.factories import A, B, Bench, client, member, messages, submit, target

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


def test_long_prompts_wait_behind_short_ones_that_came_later() -> None:
    late = Bench(placement__queue_policy="short_first", placement__long_tokens=LONG)
    for n, size in enumerate((LONG + 1, 10, LONG + 2, 20)):
        late.give(client(n), submit(range(size)))
    late.give(A, Joined())
    assert [len(place.tokens) for place in messages(late.view(member(A)), Place)] == [10, 20, LONG + 1, LONG + 2]
