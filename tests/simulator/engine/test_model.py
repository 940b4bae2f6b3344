"""The model of an engine keeps the contract: steps in order, repeats, moves, rows that leave early, layers."""

from dataclasses import replace
from typing import Any

import pytest

from dunlin.effects import Address, Joined, Message
from dunlin.messages.engine import (
    CancelMove,
    Close,
    Discard,
    Interrupt,
    MapHost,
    Move,
    MoveDone,
    Open,
    Remap,
    RemapDone,
    Resume,
    Step,
    StepDone,
    StepInterrupted,
    Unsupported,
)
from dunlin.messages.types import (
    FinishReason,
    GroupKind,
    HostRegion,
    MoveKind,
    MoveStatus,
    Priority,
    Region,
    RemapPhase,
    SamplingParams,
    Verdict,
    i8,
    i32,
    i64,
)
from simulator.cluster.engine_supervisor import SimulatedEngineSupervisor
from simulator.cluster.world import World
from simulator.engine.errors import ContractBroken
from simulator.engine.host_memory import SimulatedHostMemory
from simulator.engine.model import SimulatedEngine, engine_settings
from simulator.engine.token_model import continuation

ME = Address("instance", "i", 1)
ENGINE = Address("engine", "i")
STEP_S = 0.08


class Bench:
    """An engine of eight layers whose steps take 80 ms, and an instance that records."""

    def __init__(self, **settings: Any) -> None:
        self.world = World(0.0)
        self.heard: list[tuple[float, Message]] = []
        self.world.add(ME, self)
        defaults = {"step_s": STEP_S, "move_s": 0.01, "move_busy_s": 0.0, "layers": i32(range(8)), "slots": 1024}
        self.tier = SimulatedHostMemory()
        self.seat = SimulatedEngineSupervisor(self.world, ME, engine_settings(**{**defaults, **settings}), self.tier)
        self.world.run_to(1.0)
        self.tell(MapHost("/tier", 1 << 20, 1))
        self.heard.clear()

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Any]:
        if not isinstance(message, Joined):
            self.heard.append((round(now_s - 1.0, 6), message))
        return []

    @property
    def engine(self) -> SimulatedEngine:
        return self.seat.engine

    def tell(self, *messages: Message, at_s: float | None = None) -> None:
        """Now, or so many seconds after the start."""
        if at_s is not None:
            self.world.run_to(1.0 + at_s)
        for message in messages:
            self.world.post(ME, ENGINE, message, 0.0)

    def run(self) -> None:
        self.world.run_to(60.0)

    def of(self, kind: type[Any]) -> list[tuple[float, Any]]:
        self.run()
        return [(at_s, message) for at_s, message in self.heard if isinstance(message, kind)]


def open_of(number: int, length: int = 10, **fields: Any) -> Open:
    values = {"max_tokens": 5, "sampling": SamplingParams(seed=number), "prompt_tokens": length}
    return Open(number, **{"tokens": i32(range(length)), **values, **fields})


def step_of(number: int, *rows: tuple[int, int, int], **fields: Any) -> Step:
    """Rows of (sequence, start, stop); sequence n has the slots from 100 n on. All sample."""
    repeat = fields.get("repeat", 1)
    extents = {
        "extent_row": i32(range(len(rows))),
        "extent_start": i64(100 * sequence + start for sequence, start, _ in rows),
        "extent_length": i64(stop - start + repeat - 1 for _, start, stop in rows),
    }
    sequences, starts, stops = (i64(column) for column in zip(*rows, strict=True))
    sample = {"sample": i8([1] * len(rows))}
    return Step(number, sequences, starts, stops, **{**sample, **extents, **fields})


def move_of(number: int, sequence: int = 1, start: int = 0, stop: int = 10, **fields: Any) -> Move:
    values: dict[str, Any] = {"kind": MoveKind.SLAB_TO_HOST, "host": HostRegion(1, 1, 0, (stop - start) * 64)}
    slots = {"extent_start": i64([100 * sequence + start]), "extent_length": i64([stop - start])}
    return Move(number, sequence=sequence, region=Region(0, 8, start, stop), **{**values, **slots, **fields})


# --- steps ---


def test_a_row_without_a_next_token_ends_alone() -> None:
    """As the engine's own runner does: tests/engine/execution/test_runner.py."""
    bench = Bench(failing_token=77)
    bench.tell(open_of(1, tokens=i32([5, 77, 7]), prompt_tokens=3), open_of(2, 8))
    bench.tell(step_of(1, (1, 0, 2), (2, 0, 8), sample=i8([0, 1])))
    bench.tell(step_of(2, (1, 2, 3), (2, 8, 9)), step_of(3, (1, 3, 4), (2, 9, 10)))
    done = [message for _, message in bench.of(StepDone)]
    assert [list(one.failed) for one in done] == [[], [1], []]
    assert [list(one.dropped) for one in done] == [[], [], [1]]
    assert [list(one.sequence) for one in done] == [[2], [2], [2]]


def test_steps_are_answered_in_their_order_each_after_its_time() -> None:
    bench = Bench()
    bench.tell(open_of(1), step_of(1, (1, 0, 10)), step_of(2, (1, 10, 11)))
    said = continuation(range(10), 2, seed=1)
    assert [(at_s, done.step, list(done.token)) for at_s, done in bench.of(StepDone)] == [
        (0.08, 1, said[:1]),
        (0.16, 2, said[1:]),
    ]
    done = bench.of(StepDone)[0][1]
    assert (done.prefill_rows, done.decode_rows, done.tokens_computed) == (1, 0, 10)
    assert done.compute_s == pytest.approx(STEP_S)


def test_a_row_that_ended_is_dropped_from_the_step_queued_behind_and_a_closed_one_too() -> None:
    bench = Bench()
    bench.tell(open_of(1, max_tokens=1), open_of(2), step_of(1, (1, 0, 10), (2, 0, 10)))
    bench.tell(step_of(2, (1, 10, 11), (2, 10, 11)), Close(2))
    (_, first), (_, second) = bench.of(StepDone)
    assert list(first.finish) == [FinishReason.LENGTH]
    assert (list(first.dropped), list(second.dropped)) == ([2], [1, 2])


def test_repeats_answer_once_each_until_a_row_finishes() -> None:
    bench = Bench()
    bench.tell(open_of(1, max_tokens=20), open_of(2, max_tokens=3))
    bench.tell(step_of(1, (1, 0, 10), (2, 0, 10), repeat=8), step_of(2, (1, 12, 13)))
    done = bench.of(StepDone)
    assert [(at_s, one.step) for at_s, one in done] == [(0.08, 1), (0.16, 1), (0.24, 1), (0.32, 2)]
    assert [one.token[0] for _, one in done] == continuation(range(10), 4, seed=1)
    assert [(one.prefill_rows, one.decode_rows) for _, one in done] == [(2, 0), (0, 2), (0, 2), (0, 1)]


def test_a_token_named_by_stop_ids_ends_the_row() -> None:
    bench = Bench()
    said = continuation(range(10), 3, seed=1)
    bench.tell(open_of(1, stop_ids=i32([said[1]])), step_of(1, (1, 0, 10), repeat=4))
    assert [list(done.finish) for _, done in bench.of(StepDone)] == [[FinishReason.RUNNING], [FinishReason.STOP]]


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
        ([open_of(1), step_of(1, (1, 0, 10), sample=i8([0]), repeat=2)], "do not all sample"),
        ([Resume(1)], "no row of it is suspended"),
        ([Discard(1)], "no row of it is suspended"),
        ([move_of(1)], "no row wrote"),
        ([open_of(1), step_of(1, (1, 0, 10)), move_of(1), move_of(1)], "named twice"),
        ([Remap(1, RemapPhase.RELEASE_KV, i32([0]))], "RELEASE_KV after None"),
    ],
)
def test_what_the_contract_forbids_is_a_breach(messages: list[Message], words: str) -> None:
    bench = Bench()
    bench.tell(*messages)
    with pytest.raises(ContractBroken, match=words):
        bench.run()


def test_a_slot_that_another_sequence_wrote_into_is_noticed() -> None:
    bench = Bench()
    bench.tell(open_of(1), open_of(2), step_of(1, (1, 0, 10)))
    bench.tell(replace(step_of(2, (2, 0, 10)), extent_start=i64([105])), step_of(3, (1, 10, 11)))
    with pytest.raises(ContractBroken, match="another's KV"):
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


# --- rows that leave ---


def test_rows_leave_at_the_next_layer_and_the_others_go_on() -> None:
    bench = Bench()
    bench.tell(open_of(1), open_of(2), step_of(1, (1, 0, 10), (2, 0, 10)))
    bench.tell(Interrupt(1, Verdict.DISCARD, i64([2])), at_s=0.025)
    ((at_s, left),) = bench.of(StepInterrupted)
    assert (at_s, left.layer, list(left.sequences)) == (0.03, 3, [2])
    ((done_s, done),) = bench.of(StepDone)
    assert (done_s, list(done.sequence)) == (0.08, [1])


def test_suspended_rows_keep_what_was_computed_and_go_on_when_resumed() -> None:
    bench = Bench()
    bench.tell(open_of(1), step_of(1, (1, 0, 10)))
    bench.tell(Interrupt(1, Verdict.SUSPEND), at_s=0.055)
    bench.tell(Resume(1), at_s=1.0)
    ((at_s, left),) = bench.of(StepInterrupted)
    assert (at_s, left.layer, list(left.sequences)) == (0.06, 6, [1])
    ((done_s, done),) = bench.of(StepDone)
    assert (done_s, list(done.token)) == (1.02, continuation(range(10), 1, seed=1))


def test_discarded_rows_may_be_asked_for_again_from_their_start() -> None:
    bench = Bench()
    bench.tell(open_of(1), step_of(1, (1, 0, 10)))
    bench.tell(Interrupt(1, Verdict.SUSPEND), at_s=0.015)
    bench.tell(Discard(1), step_of(2, (1, 0, 10)), at_s=0.1)
    assert [(at_s, done.step) for at_s, done in bench.of(StepDone)] == [(0.18, 2)]


def test_rows_of_a_step_that_has_not_begun_leave_at_once() -> None:
    bench = Bench()
    bench.tell(open_of(1), open_of(2), step_of(1, (1, 0, 10)), step_of(2, (2, 0, 10)))
    bench.tell(Interrupt(2, Verdict.DISCARD), at_s=0.02)
    assert [(at_s, left.step, left.layer) for at_s, left in bench.of(StepInterrupted)] == [(0.02, 2, 0)]
    assert [done.step for _, done in bench.of(StepDone)] == [1]


def test_an_interruption_that_comes_too_late_changes_nothing() -> None:
    bench = Bench()
    bench.tell(open_of(1), step_of(1, (1, 0, 10)))
    bench.tell(Interrupt(1, Verdict.DISCARD), at_s=0.075)
    assert [done.step for _, done in bench.of(StepDone)] == [1]
    assert bench.of(StepInterrupted) == []


# --- moves ---


def moved(bench: Bench) -> list[tuple[float, int, MoveStatus]]:
    return [(at_s, done.move, done.status) for at_s, done in bench.of(MoveDone)]


def written(**settings: Any) -> Bench:
    """Sequence 1's ten tokens are in the slab; it is 0.08 s."""
    bench = Bench(**settings)
    bench.tell(open_of(1), step_of(1, (1, 0, 10)))
    bench.tell(at_s=0.08)
    return bench


def test_moves_go_one_after_another_and_an_urgent_one_first() -> None:
    bench = written()
    bench.tell(move_of(1, priority=Priority.CHECKPOINT), move_of(2, priority=Priority.CHECKPOINT))
    bench.tell(move_of(3, priority=Priority.KV), at_s=0.085)
    assert moved(bench) == [
        (0.095, 3, MoveStatus.OK),
        (0.1, 1, MoveStatus.OK),
        (0.11, 2, MoveStatus.OK),
    ]


def test_a_cancelled_move_is_answered_at_once_and_the_next_one_goes() -> None:
    bench = written()
    bench.tell(move_of(1), move_of(2))
    bench.tell(CancelMove(1), CancelMove(9), at_s=0.085)
    assert moved(bench) == [(0.085, 1, MoveStatus.CANCELLED), (0.095, 2, MoveStatus.OK)]


def test_what_a_step_waits_for_must_have_landed() -> None:
    bench = written()
    bench.tell(move_of(1), step_of(2, (1, 10, 11), after=i64([1])))
    assert [at_s for at_s, done in bench.of(StepDone) if done.step == 2] == [0.17]


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_region_comes_back_as_it_was_or_is_known_to_be_corrupt(is_damaged: bool) -> None:
    bench = written()
    out = move_of(1)
    bench.tell(out)
    bench.run()
    ((_, done),) = bench.of(MoveDone)
    host = replace(out.host or HostRegion(0, 0, 0, 0), checksum=done.checksum)
    if is_damaged:
        bench.tier.corrupt(0)
    bench.tell(Close(1), open_of(2), move_of(2, sequence=2, host=host, kind=MoveKind.HOST_TO_SLAB))
    again = replace(step_of(2, (2, 9, 10)), after=i64([2]))
    bench.tell(again)
    bench.world.run_to(90.0)
    back, answer = bench.heard[-2][1], bench.heard[-1][1]
    assert isinstance(back, MoveDone)
    assert isinstance(answer, StepDone)
    assert back.status is (MoveStatus.CORRUPT if is_damaged else MoveStatus.OK)
    assert list(answer.dropped) == ([2] if is_damaged else [])


def test_the_engine_does_nothing_else_for_a_share_of_a_move() -> None:
    bench = written(move_busy_s=0.004)
    bench.tell(move_of(1))
    bench.tell(step_of(2, (1, 10, 11)), at_s=0.1)
    assert [at_s for at_s, done in bench.of(StepDone) if done.step == 2] == [0.184]
    assert bench.of(MoveDone)[0][1].busy_s == pytest.approx(0.004)


# --- the next engine ---


def test_a_crashed_engine_leaves_its_slab_but_for_what_it_was_writing() -> None:
    bench = written(restart_s=0.5)
    bench.tell(open_of(2), step_of(2, (2, 0, 10)), at_s=0.1)
    bench.world.run_to(1.15)
    bench.seat.crash()
    bench.world.run_to(2.0)
    kept = open_of(3, extent_start=i64([100]), extent_length=i64([9]))
    bench.tell(kept, step_of(3, (3, 9, 10)))
    assert [done.step for _, done in bench.of(StepDone)] == [1, 3]
    torn = open_of(4, extent_start=i64([200]), extent_length=i64([9]))
    bench.tell(torn, step_of(4, (4, 9, 10)))
    with pytest.raises(ContractBroken, match="another's KV"):
        bench.world.run_to(90.0)


def test_after_an_engine_went_wild_nothing_of_the_slab_may_be_read() -> None:
    bench = written(restart_s=0.5)
    bench.seat.crash(signal=11)
    bench.world.run_to(2.0)
    bench.tell(open_of(3, extent_start=i64([100]), extent_length=i64([9])), step_of(3, (3, 9, 10)))
    with pytest.raises(ContractBroken, match="another's KV"):
        bench.run()


# --- layers ---


def test_dropped_layers_make_room_in_two_phases() -> None:
    bench = Bench(weights_bytes=4096, kv_bytes_per_token=64, quantum=16)
    half = i32(range(4))
    for number, phase in enumerate((RemapPhase.PREPARE, RemapPhase.DROP_WEIGHTS, RemapPhase.RELEASE_KV)):
        bench.tell(Remap(1, phase, half), at_s=float(number))
    done: list[RemapDone] = [message for _, message in bench.of(RemapDone)]
    assert [one.slots for one in done] == [1024, 1024 + 512, 2048 + 512]
    assert (len(done[1].layers), len(done[2].layers)) == (8, 4)
