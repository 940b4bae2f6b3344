"""What a dispatcher remembers of where beginnings of texts are, and what it makes of it."""

import pytest

from dunlin.effects import Address, Gone
from dunlin.messages.dispatch import Accepted, Place, Reused
from dunlin.messages.door import Delta
from dunlin.messages.types import FinishReason, i32
from services.dispatcher.placement.prefix_affinity import MAX_LISTED_HOLDERS, PrefixAffinity, prefix_depths
from services.dispatcher.requests.journal import Journal
from services.dispatcher.requests.request import Request
from tests.services.dispatcher.factories import A, B, Bench, client, member, messages, only, rows, submit, target

PROMPT = [7 * token % 90 for token in range(100)]
BIG = {"capacity_slots": 10_000, "free_slots": 10_000, "max_positions": 10_000}


def request(tokens: list[int], tenant: str = "", adapter: str = "") -> Request:
    return Journal().add(client("c"), submit(tokens, tenant=tenant, adapter=adapter), 0.0)


def held(affinity: PrefixAffinity, request: Request, *instances: Address) -> list[int]:
    found = affinity.prefix_hits(request)
    for instance, tokens in found.holders.items():
        assert found.tokens_at(instance) == tokens
    return [found.tokens_at(instance) for instance in instances]


def bench() -> Bench:
    return Bench(placement__policy="prefix_affinity").fleet(member(A, **BIG), member(B, **BIG))


def finish(bench: Bench, place: Place, at: object = A) -> None:
    """Its only token comes."""
    bench.give(at, Accepted(place.request, place.attempt, 1))  # type: ignore[arg-type]
    position = len(place.tokens)
    bench.give(at, rows((place.request, place.attempt, position, 5), finish=FinishReason.LENGTH))  # type: ignore[arg-type]


@pytest.mark.parametrize("tokens", [15, 16, 100, 1000, 32_768])
def test_a_text_is_remembered_at_few_depths_of_which_one_is_near_any_length(tokens: int) -> None:
    found = prefix_depths(tokens)
    assert len(found) <= 24
    assert found == sorted(set(found))
    assert all(depth % 16 == 0 for depth in found)
    assert not found if tokens < 16 else 3 * found[-1] >= 2 * (tokens - 15)


def test_what_was_computed_is_held_up_to_a_remembered_depth() -> None:
    affinity = PrefixAffinity()
    affinity.on_computed(request(PROMPT), A, 1000)
    same, longer, other = request(PROMPT), request([*PROMPT, *PROMPT]), request([1, *PROMPT])
    assert held(affinity, same, A, B) == [96, 0]
    assert held(affinity, longer, A, B) == [96, 0]
    assert held(affinity, other, A, B) == [0, 0]
    assert held(affinity, request(PROMPT[:32]), A) == [16], "the last token does not count"


def test_another_adapter_has_nothing_there() -> None:
    affinity = PrefixAffinity()
    affinity.on_computed(request(PROMPT, adapter="aa"), A, 1000)
    assert [held(affinity, request(PROMPT, adapter=each), A) for each in ("aa", "bb", "")] == [[96], [0], [0]]


def test_another_tenant_has_nothing_there() -> None:
    affinity = PrefixAffinity()
    affinity.on_computed(request(PROMPT, "a"), A, 1000)
    assert held(affinity, request(PROMPT, "b"), A) == [0]


def test_the_oldest_is_forgotten_beyond_the_slots_of_the_instance() -> None:
    affinity = PrefixAffinity()
    texts = [[number] * 64 for number in range(3)]
    for text in texts:
        affinity.on_computed(request(text), A, 128)
    assert [held(affinity, request([*text, 0]), A)[0] for text in texts] == [0, 64, 64]


def test_the_longest_prefix_of_a_sequence_is_forgotten_first() -> None:
    affinity = PrefixAffinity()
    affinity.on_computed(request([*PROMPT[:96], 1]), A, 32)
    assert held(affinity, request(PROMPT), A) == [32]


def test_a_guess_that_was_too_hopeful_costs_the_older_half() -> None:
    affinity = PrefixAffinity()
    old, new = request([1] * 65), request([2] * 65)
    affinity.on_computed(old, A, 1000)
    affinity.on_computed(new, A, 1000)
    new.expected_cached_tokens = 64
    affinity.on_accepted(new, A, 64)
    assert held(affinity, old, A) == [64]
    affinity.on_accepted(new, A, 0)
    assert held(affinity, old, A) == [0]
    assert held(affinity, new, A) == [64]
    assert affinity.missed_total == 1


def test_the_next_turn_goes_where_the_first_one_was() -> None:
    one = bench()
    first = only(one.give(client("1"), submit(PROMPT, max_tokens=1)), Place)
    finish(one, first)
    # A is busier now; without the beginning that it holds, B would be chosen.
    one.view(member(A, **{**BIG, "free_slots": 9_900}), member(B, **BIG))
    sent = one.give(client("2"), submit([*PROMPT, 5, 6, 7], max_tokens=1))
    assert target(sent, Place) == [A]
    why = only(sent, Place).why
    assert why is not None
    assert {figure.name: figure.value for figure in why.figures}["held_tokens"] == 96


def test_load_outweighs_what_would_be_saved() -> None:
    one = bench()
    finish(one, only(one.give(client("1"), submit(PROMPT, max_tokens=1)), Place))
    one.view(member(A, **{**BIG, "free_slots": 9_000}), member(B, **BIG))
    sent = one.give(client("2"), submit([*PROMPT, 5, 6, 7], max_tokens=1))
    assert target(sent, Place) == [B]


@pytest.mark.parametrize("loss", ["gone", "not ready"])
def test_an_instance_that_lost_its_cache_has_nothing(loss: str) -> None:
    one = bench()
    finish(one, only(one.give(client("1"), submit(PROMPT, max_tokens=1)), Place))
    if loss == "gone":
        one.give(A, Gone("killed"))
        one.fleet(member(A, **BIG), member(B, **BIG))
    else:
        one.view(member(A, ready=False))
        one.view(member(A, **{**BIG, "free_slots": 9_999}), member(B, **BIG))
    sent = one.give(client("2"), submit(PROMPT, max_tokens=1))
    why = only(sent, Place).why
    assert why is not None
    assert {figure.name: figure.value for figure in why.figures}["held_tokens"] == 0


def test_the_client_hears_what_its_prompt_found_once_and_from_the_attempt_that_began_it() -> None:
    one = Bench().fleet(member(A), member(B))
    place = one.run("c", tokens=range(40), max_tokens=3)
    one.give(A, Reused(place.request, 1, 32))
    delta = only(one.give(A, rows((1, 1, 40, 5))), Delta)
    assert delta.cached_tokens == 32
    again = only(one.give(A, Gone("killed")), Place)
    one.give(B, Reused(again.request, 2, 16))
    delta = only(one.give(B, rows((1, 2, 41, 6))), Delta)
    assert (list(delta.tokens), delta.cached_tokens) == ([6], 32)


def test_a_stale_reused_message_is_counted_and_ignored() -> None:
    one = Bench().fleet(member(A))
    one.run("c")
    assert messages(one.give(A, Reused(1, 7, 2)), Delta) == []
    assert one.core.report().stale_total == 1
    assert list(only(one.give(A, rows((1, 1, 3, 5))), Delta).tokens) == list(i32([5]))


def test_what_many_hold_is_not_listed_but_bounded() -> None:
    affinity = PrefixAffinity()
    many = [Address("instance", f"i{index}", index) for index in range(MAX_LISTED_HOLDERS + 1)]
    for instance in many:
        affinity.on_computed(request(PROMPT[:48]), instance, 1000)
    affinity.on_computed(request(PROMPT), A, 1000)
    found = affinity.prefix_hits(request([*PROMPT, 1]))
    assert found.holders == {A: 96}
    assert (found.most_elsewhere, found.tokens_at(A), found.tokens_at(many[3]), found.tokens_at(B)) == (48, 96, 48, 0)
    affinity.forget_instance(many[0])
    affinity.forget_instance(A)
    found = affinity.prefix_hits(request([*PROMPT, 1]))
    assert (found.most_elsewhere, found.holders) == (0, dict.fromkeys(many[1:], 48))
