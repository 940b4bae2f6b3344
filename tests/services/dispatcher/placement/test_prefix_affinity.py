"""What a dispatcher remembers of where beginnings of texts are, and what it makes of it."""

import pytest

from dunlin.effects import Address, Gone
from dunlin.messages.dispatch import Accepted, Place, Ready, Refusal, Refused, Reused
from dunlin.messages.door import Delta
from dunlin.messages.fleet import FleetView
from dunlin.messages.types import FinishReason, SamplingParams, i32
from services.dispatcher.placement.prefix_affinity import MAX_LISTED_HOLDERS, PrefixAffinity, prefix_depths
from services.dispatcher.requests.journal import Journal
from services.dispatcher.requests.request import Request
from tests.services.dispatcher.factories import (
    MONITOR,
    A,
    B,
    Bench,
    client,
    member,
    messages,
    only,
    rows,
    submit,
    target,
)

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


def held_at(one: Bench, name: object, prompt: list[int], instance: Address = A) -> int:
    """What the dispatcher expects that the instance, the only one, has of the prompt of a new request."""
    place = only(one.give(client(name), submit(prompt, max_tokens=1)), Place)
    assert place.why is not None
    one.give(instance, Accepted(place.request, place.attempt, 1, reused_tokens=len(prompt)))
    return int({figure.name: figure.value for figure in place.why.figures}["held_tokens"])


def alone(slots: int = 10_000) -> Bench:
    size = {"capacity_slots": slots, "free_slots": slots, "max_positions": slots}
    return Bench(placement__policy="prefix_affinity").fleet(member(A, **size))


def test_a_prompt_is_held_from_the_first_token_on() -> None:
    one = alone()
    one.run("1", tokens=PROMPT)
    assert held_at(one, "2", PROMPT) == 0, "it may still be computed"
    one.give(A, rows((1, 1, 100, 5)))
    assert held_at(one, "3", PROMPT) == 96


def test_an_answer_is_held_from_its_end_on() -> None:
    one = alone()
    one.run("1", tokens=PROMPT, max_tokens=50)
    one.give(A, rows(*((1, 1, 100 + index, index) for index in range(49))))
    assert held_at(one, "2", [*PROMPT, *range(50)]) == 96
    one.give(A, rows((1, 1, 149, 49), finish=FinishReason.LENGTH))
    assert held_at(one, "3", [*PROMPT, *range(50)]) == 144


def test_no_more_is_held_than_the_instance_has_slots() -> None:
    one = alone(slots=200)
    for number, first in enumerate((1, 2, 3), 1):
        place = one.run(number, tokens=[first, *PROMPT], max_tokens=1)
        one.give(A, rows((place.request, 1, 101, 5), finish=FinishReason.LENGTH))
    assert [held_at(one, f"again {first}", [first, *PROMPT]) for first in (3, 2, 1)] == [96, 96, 0]


def test_an_instance_that_has_less_than_was_expected_is_expected_to_have_less() -> None:
    one = alone()
    finish(one, only(one.give(client("1"), submit(PROMPT, max_tokens=1)), Place))
    place = only(one.give(client("2"), submit(PROMPT, max_tokens=1)), Place)
    one.give(A, Accepted(place.request, place.attempt, 1, reused_tokens=0))
    assert held_at(one, "3", PROMPT) == 48, "the longest ones are forgotten first"


def test_an_attempt_after_a_migration_is_expected_to_reuse_nothing() -> None:
    """It has its KV by then: the target looks for nothing in its prefix cache."""
    one = bench()
    finish(one, only(one.give(client("1"), submit(PROMPT, max_tokens=1)), Place))
    one.view(member(A, **{**BIG, "free_slots": 0, "waiting": 16}), member(B, **BIG))
    finish(one, only(one.give(client("2"), submit(PROMPT, max_tokens=1)), Place), B)
    one.view(member(A, **BIG), member(B, **{**BIG, "free_slots": 9_000}))
    place = only(one.give(client("3"), submit(PROMPT)), Place)
    one.give(A, Accepted(place.request, 1, 1, reused_tokens=96))
    one.give(A, rows((place.request, 1, 100, 5)))
    assert target(one.give(A, Ready(place.request, 1, B, handle=7, tokens=100)), Place) == [B]
    one.give(B, Accepted(place.request, 2, 1))
    assert one.core._affinity.missed_total == 0


def test_no_more_of_a_prompt_is_said_to_be_cached_than_it_has() -> None:
    """A resumed request's answer is computed with its prompt."""
    one = Bench().fleet(member(A))
    one.run("c", tokens=range(40))
    one.give(A, Reused(1, 1, 64))
    assert only(one.give(A, rows((1, 1, 40, 5))), Delta).cached_tokens == 40


def test_where_log_probabilities_of_the_prompt_are_missing_nothing_is_reused() -> None:
    affinity = PrefixAffinity()
    affinity.on_computed(request(PROMPT), A, 1000)
    wanted = submit(PROMPT, sampling=SamplingParams(prompt_logprobs=0))
    assert held(affinity, Journal().add(client("c"), wanted, 0.0), A) == [0]


def test_what_is_computed_again_counts_once() -> None:
    affinity = PrefixAffinity()
    texts = [[number] * 64 for number in range(2)]
    for text in (texts[0], texts[1], texts[1]):
        affinity.on_computed(request(text), A, 128)
    assert [held(affinity, request([*text, 0]), A)[0] for text in texts] == [64, 64]


def test_what_was_computed_again_is_not_the_oldest_any_more() -> None:
    affinity = PrefixAffinity()
    texts = [[number] * 64 for number in range(3)]
    for index in (0, 1, 0, 2):
        affinity.on_computed(request(texts[index]), A, 128)
    assert [held(affinity, request([*text, 0]), A)[0] for text in texts] == [64, 0, 64]
    affinity.forget_instance(A)
    assert not affinity._holders, "nothing is left of what nobody holds"


def test_a_holder_that_takes_nothing_now_is_passed_over() -> None:
    one = bench()
    finish(one, only(one.give(client("1"), submit(PROMPT, max_tokens=1)), Place))
    assert target(one.give(client("2"), submit(PROMPT)), Place) == [A]
    sent = one.give(A, Refused(2, 1, Refusal.FULL))
    assert target(sent, Place) == [B]


@pytest.mark.parametrize(("monitor", "version"), [(MONITOR, 1), (MONITOR._replace(incarnation=6), 99)])
def test_an_old_view_takes_no_instances_cache_away(monitor: Address, version: int) -> None:
    one = alone()
    one.view(member(A, **BIG), base_version=1)
    finish(one, only(one.give(client("1"), submit(PROMPT, max_tokens=1)), Place))
    one.give(monitor, FleetView(version, (member(A, ready=False),)))
    assert one.core.report().stale_total == 1
    assert held_at(one, "2", PROMPT) == 96
