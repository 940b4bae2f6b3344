"""The model of an engine raises ContractBroken for what the contract forbids, and counts its safepoints."""

from itertools import pairwise

import pytest

from dunlin.effects import Message
from dunlin.messages.engine import Unsupported
from dunlin.messages.types import GroupKind, i64
from simulator.engine.errors import ContractBroken
from tests.simulator.engine.engine_bench import Bench, move_of, open_of, step_of


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([open_of(1), open_of(1)], "open already"),
        ([open_of(1, extent_start=i64([0]), extent_length=i64([11]))], "KV of 11 tokens"),
        ([open_of(1), step_of(1, (1, 0, 10), (1, 0, 10))], "different ones"),
        ([open_of(1), step_of(1, (1, 4, 10))], "KV ends at 0"),
        ([open_of(1), step_of(1, (1, 0, 11))], "of 10 tokens"),
        ([open_of(1), step_of(1, (1, 0, 9))], "samples after 9"),
        ([open_of(1), step_of(1, (1, 0, 10), extent_length=i64([9]))], "into 9 slots"),
        ([open_of(1), step_of(1, (1, 0, 10), extent_start=i64([1020]))], "in a slab of 1024"),
        ([move_of(1)], "no row wrote"),
        ([open_of(1), step_of(1, (1, 0, 10)), move_of(1), move_of(1)], "named twice"),
    ],
)
def test_what_the_contract_forbids_is_a_breach(messages: list[Message], words: str) -> None:
    bench = Bench()
    bench.tell(*messages)
    with pytest.raises(ContractBroken, match=words):
        bench.run()


def test_steps_with_other_members_are_not_supported() -> None:
    bench = Bench()
    bench.tell(open_of(1), step_of(7, (1, 0, 10), group=GroupKind.RING))
    assert [message.step for _, message in bench.of(Unsupported)] == [7]


def test_the_counter_of_safepoints_moves_within_a_long_step() -> None:
    bench = Bench(step_s=8.0, progress_s=0.5)
    bench.tell(open_of(1), step_of(1, (1, 0, 10)))
    bench.world.run_to(1.0 + 4.9)
    counts = [message.safepoints for _, message in bench.heard if hasattr(message, "safepoints")]
    assert counts[-1] >= 3


def test_the_counter_moves_within_a_long_layer_and_stands_while_the_engine_is_stuck() -> None:
    bench = Bench(step_s=80.0, progress_s=0.5)
    bench.tell(open_of(1), step_of(1, (1, 0, 10)))
    bench.world.run_to(1.0 + 9.9)
    counts = [message.safepoints for _, message in bench.heard if hasattr(message, "safepoints")]
    assert len(counts) > 15
    assert all(b > a for a, b in pairwise(counts[2:])), "a safepoint every few milliseconds"
    bench.engine.is_stuck = True
    heard = len(bench.heard)
    bench.world.run_to(bench.world.now_s + 3.0)
    stuck = [message.safepoints for _, message in bench.heard[heard:] if hasattr(message, "safepoints")]
    assert len(stuck) > 3
    assert len(set(stuck)) == 1


def test_the_counter_never_falls_when_a_step_ends() -> None:
    bench = Bench(step_s=1.0, progress_s=0.1)
    bench.tell(open_of(1), step_of(1, (1, 0, 10)))
    bench.world.run_to(4.0)
    counts = [message.safepoints for _, message in bench.heard if hasattr(message, "safepoints")]
    assert counts == sorted(counts)
    assert counts[-1] >= 200
