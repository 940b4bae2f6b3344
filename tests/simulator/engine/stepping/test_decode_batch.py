"""Steps with the columns of the step before: answered as if each row were looked at."""

from dataclasses import replace
from typing import Any

import pytest

from dunlin.messages.engine import Close, Step, StepDone
from dunlin.messages.types import FinishReason, SamplingParams, i32, i64
from simulator.engine.errors import ContractBroken
from tests.simulator.engine.engine_bench import Bench, open_of, step_of


def next_step(before: Step) -> Step:
    """The same rows, each a token further: the same columns but for stops and slots."""
    stops = i64([stop + 1 for stop in before.stop])
    starts = i64([slot + 1 for slot in before.extent_start])
    return replace(before, step=before.step + 1, start=before.stop, stop=stops, extent_start=starts)


def copied(step: Step) -> Step:
    """With columns of its own, so that the engine looks at each row."""
    columns = ("sequence", "start", "stop", "sample", "extent_row", "extent_start", "extent_length")
    return replace(step, **{name: getattr(step, name)[:] for name in columns})


def opens() -> list[Any]:
    """Three sequences: one of 4 tokens to come, one that draws its tokens, one with a stop token."""
    drawn = SamplingParams(temperature=1.0, seed=5)
    return [open_of(1, max_tokens=4), open_of(2, max_tokens=9, sampling=drawn), open_of(3, stop_ids=i32(range(90)))]


def steps(count: int, rows: tuple[int, ...] = (1, 2, 3)) -> list[Step]:
    """The prompts, then so many decode steps."""
    first = step_of(2, *((number, 10, 11) for number in rows))
    told = [step_of(1, *((number, 0, 10) for number in rows)), first]
    while len(told) <= count:
        told.append(next_step(told[-1]))
    return told


def answers(told: list[Any], **settings: Any) -> list[StepDone]:
    bench = Bench(**{"audit": False, **settings})
    bench.tell(*told)
    return [done for _, done in bench.of(StepDone)]


@pytest.mark.parametrize("rows", [(1, 2, 3), (2, 1), (2,)])
def test_the_answers_are_those_of_steps_with_columns_of_their_own(rows: tuple[int, ...]) -> None:
    told = steps(6, rows)
    found = answers([*opens(), *told])
    assert found == answers([*opens(), *map(copied, told)])
    assert [list(done.dropped) for done in found][:2] == [[], []]


def test_the_batch_is_known_from_step_to_step_until_one_ends() -> None:
    bench = Bench(audit=False)
    bench.tell(open_of(1, max_tokens=4), open_of(2, max_tokens=9), *steps(5, (1, 2))[:3])
    bench.world.run_to(1.5)
    batch = bench.engine.runner._rows._decode_batch
    assert batch is not None
    assert [sequence.length for sequence in batch.sequences] == [13, 13]
    bench.tell(*steps(5, (1, 2))[3:])
    done = [message for _, message in bench.of(StepDone)][3:]
    assert list(done[0].finish) == [FinishReason.LENGTH, FinishReason.RUNNING]
    assert list(done[1].dropped) == [1]


def test_a_sequence_closed_between_two_steps_is_dropped() -> None:
    told = steps(5, (1, 2))
    for each in (told, list(map(copied, told))):
        done = answers([open_of(1, max_tokens=9), open_of(2, max_tokens=9), *each[:4], Close(2), each[4]])
        assert [list(one.sequence) for one in done] == [[1, 2], [1], [1], [1], [1]]


def test_a_step_that_passes_a_token_over_breaks_the_contract() -> None:
    told = steps(4, (1,))
    with pytest.raises(ContractBroken):
        answers([open_of(1, max_tokens=9), *told[:4], next_step(next_step(told[3]))])
