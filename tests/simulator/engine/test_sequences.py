"""Sequences of the modelled engine: what `Open` makes of them, which it refuses, and which fail."""

from typing import Any

import pytest

from dunlin.messages.engine import Open
from dunlin.messages.types import SamplingParams, i32, i64
from simulator.engine.errors import ContractBroken
from simulator.engine.kv_audit import KvCacheAudit
from simulator.engine.sequences import SimulatedSequences, slots_of_extents
from simulator.engine.token_model import PositionTokenModel, PrefixTokenModel, digest_of


def sequences(**changes: Any) -> SimulatedSequences:
    values: dict[str, Any] = {"slots": 64, "max_positions": 20, "voice": PrefixTokenModel(), "audit": None}
    return SimulatedSequences(**{**values, **changes})


def open_of(number: int = 1, tokens: tuple[int, ...] = (5, 6, 7), **changes: Any) -> Open:
    values: dict[str, Any] = {"prompt_tokens": len(tokens), "max_tokens": 4, **changes}
    return Open(number, i32(tokens), **values)


def test_an_opened_sequence_knows_its_tokens_its_limit_and_the_kv_that_it_has() -> None:
    held = sequences()
    sampling = SamplingParams(seed=9, logprobs=2, min_tokens=2)
    held.open(open_of(sampling=sampling, extent_start=i64([8, 20]), extent_length=i64([1, 1]), stop_ids=i32([3])))
    one = held.by_number[1]
    assert (one.length, one.kv_tokens, one.prompt_tokens, one.tokens_max) == (3, 2, 3, 7)
    assert (one.seed, one.logprobs, list(one.stop_ids), one.state) == (9, 2, [3], digest_of([5, 6, 7]))
    assert (one.ended, one.fails, one.least_length) == (False, False, 5)


def test_the_engines_positions_limit_a_sequence() -> None:
    held = sequences(voice=PositionTokenModel())
    held.open(open_of(max_tokens=100))
    assert (held.by_number[1].tokens_max, held.by_number[1].state) == (20, 0)


def test_a_text_that_contains_the_failing_token_fails() -> None:
    held = sequences(failing_token=6)
    held.open(open_of(1))
    held.open(open_of(2, (5, 7)))
    assert [held.by_number[number].fails for number in (1, 2)] == [True, False]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (open_of(2, ()), "opened with 0 tokens of at most 4"),
        (open_of(2, max_tokens=0), "opened with 3 tokens of at most 3"),
        (open_of(2, tuple(range(20))), "opened with 20 tokens of at most 20"),
        (open_of(2, extent_start=i64([0]), extent_length=i64([4])), "KV of 4 tokens, and it has 3"),
        (open_of(1), "sequence 1 is open already"),
    ],
)
def test_what_cannot_be_opened_is_refused_and_leaves_no_trace(message: Open, words: str) -> None:
    held = sequences()
    held.open(open_of(1))
    with pytest.raises(ContractBroken, match=words):
        held.open(message)
    assert list(held.by_number) == [1]


def test_a_closed_number_may_be_opened_again_and_an_unknown_one_closed() -> None:
    held = sequences(audit=KvCacheAudit(64))
    held.open(open_of(1))
    held.close(1)
    held.close(1)
    assert held.by_number == {}
    held.open(open_of(1, (1, 2)))
    assert held.by_number[1].length == 2


def test_the_audit_receives_the_slots_of_an_opened_sequence() -> None:
    held = sequences(audit=KvCacheAudit(8))
    with pytest.raises(ContractBroken, match="in a slab of 8"):
        held.open(open_of(extent_start=i64([7]), extent_length=i64([2])))


def test_extents_are_slots_in_their_order() -> None:
    assert slots_of_extents(i64([20, 4]), i64([2, 3])) == [20, 21, 4, 5, 6]
    assert slots_of_extents(i64(), i64()) == []
    with pytest.raises(ValueError, match="shorter"):
        slots_of_extents(i64([1, 2]), i64([1]))
