"""Adapters in the dispatcher's core: a request's attempts all have its own, and go where that is."""

from dunlin.kv import prefix_hash
from dunlin.messages.dispatch import Adopt, Place, Refusal, Refused
from dunlin.messages.door import Delta
from dunlin.messages.types import FinishReason
from tests.services.dispatcher.factories import A, B, Bench, client, member, only, submit, target


def test_every_attempt_has_the_requests_adapter() -> None:
    bench = Bench().fleet(member(A), member(B))
    first = only(bench.give(client("c"), submit(adapter="aa")), Place)
    again = bench.give(A, Refused(first.request, first.attempt, Refusal.FULL))
    assert [place.adapter for place in (first, only(again, Place))] == ["aa", "aa"]
    assert only(bench.give(client("d"), submit()), Place).adapter == ""


def test_an_instance_without_the_adapter_is_not_asked_again_and_others_are() -> None:
    bench = Bench().fleet(member(A), member(B))
    place = only(bench.give(client("c"), submit(adapter="aa")), Place)
    sent = bench.give(A, Refused(place.request, 1, Refusal.NO_ADAPTER))
    assert target(sent, Place) == [B]
    assert target(bench.give(client("d"), submit()), Place) == [A], "it serves all else"


def test_where_no_instance_has_it_the_request_ends_with_an_error_that_says_so() -> None:
    bench = Bench().fleet(member(A), member(B))
    place = only(bench.give(client("c"), submit(adapter="aa")), Place)
    bench.give(A, Refused(place.request, 1, Refusal.NO_ADAPTER))
    sent = bench.give(B, Refused(place.request, 2, Refusal.NO_ADAPTER))
    ended = only(sent, Delta)
    assert ended.finish is FinishReason.ERROR
    assert ended.detail == "no instance that could hold it has its model's adapter"


def test_the_proof_of_a_resumed_request_names_its_adapter() -> None:
    bench = Bench().fleet(member(A))
    asked = only(bench.give(client("c"), submit((5, 6, 7), key="req-a-1", adapter="aa")), Adopt)
    root = prefix_hash.chain_root("", "", adapter="aa")
    assert asked.chain == prefix_hash.chain_of(root, [5, 6, 7], 3)
