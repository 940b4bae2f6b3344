"""A recording client keeps the answers with their times, and raises for a stream that breaks its contract."""

from typing import Any

import pytest

from dunlin.effects import Address
from dunlin.messages.door import Admitted, Delta, RejectionCode, Submit, SubmitRejected
from dunlin.messages.types import FinishReason, SamplingParams, i32
from simulator.cluster.recording_client import RecordingClient
from simulator.engine.errors import ContractBroken
from simulator.engine.token_model import PositionTokenModel, continuation
from tests.simulator.cluster.hearing import Word

ME, DOOR = Address("client", "c"), Address("dispatcher", "d", 1)
SAID = continuation([5, 6, 7], 4, seed=9)


def client(**submit: Any) -> RecordingClient:
    return RecordingClient(ME, Submit(i32([5, 6, 7]), 4, SamplingParams(seed=9), **submit))


def delta(*tokens: int, finish: FinishReason = FinishReason.RUNNING, **rest: Any) -> Delta:
    return Delta(**{"tokens": i32(tokens), "finish": finish, **rest})


def admitted(request: str) -> Admitted:
    return Admitted(request)


def test_each_token_has_the_time_at_which_it_came() -> None:
    one = client()
    one.receive(1.0, DOOR, admitted("req-1-1"))
    one.receive(2.0, DOOR, delta(*SAID[:1]))
    assert one.receive(3.0, DOOR, delta(*SAID[1:], finish=FinishReason.LENGTH)) == []
    assert (one.request, one.tokens, one.times_s) == ("req-1-1", SAID, [2.0, 3.0, 3.0, 3.0])
    assert one.is_exact


@pytest.mark.parametrize(
    ("tokens", "finish"),
    [
        (SAID[:3], FinishReason.LENGTH),
        (SAID, FinishReason.STOP),
        (SAID, FinishReason.RUNNING),
        ([*SAID[:3], SAID[3] + 1], FinishReason.LENGTH),
    ],
)
def test_a_stream_that_is_short_or_wrong_or_ends_otherwise_is_not_exact(tokens: list[int], finish: Any) -> None:
    one = client()
    one.receive(1.0, DOOR, delta(*tokens, finish=finish))
    assert not one.is_exact


def test_what_is_expected_follows_the_clients_token_model() -> None:
    assert client().expected == SAID
    plain = RecordingClient(ME, client().submit, voice=PositionTokenModel(), vocabulary=7)
    assert plain.expected != SAID
    assert max(plain.expected) < 7


def test_a_refusal_is_kept_and_other_messages_are_ignored() -> None:
    one = client()
    refusal = SubmitRejected(RejectionCode.FULL, "full")
    one.receive(1.0, DOOR, refusal)
    one.receive(1.0, DOOR, Word("x"))
    assert (one.rejected, one.tokens) == (refusal, [])


def test_a_token_after_the_end_is_a_breach() -> None:
    one = client()
    one.receive(1.0, DOOR, delta(*SAID, finish=FinishReason.LENGTH))
    with pytest.raises(ContractBroken, match="tokens after the end"):
        one.receive(2.0, DOOR, delta())


def test_a_second_id_is_a_breach_unless_the_request_has_an_idempotency_key() -> None:
    one, named = client(), client(idempotency="name", digest=b"d")
    for each in (one, named):
        each.receive(1.0, DOOR, admitted("req-1-1"))
        each.receive(1.0, DOOR, admitted("req-1-1"))
    with pytest.raises(ContractBroken, match="request req-1-1 is called req-2-1 now"):
        one.receive(2.0, DOOR, admitted("req-2-1"))
    named.receive(2.0, DOOR, admitted("req-2-1"))
    assert named.request == "req-1-1"
