"""Moves of the modelled engine: one at a time, the urgent first; a damaged region is known."""

from dataclasses import replace

import pytest

from dunlin.cost.links import EngineLinks
from dunlin.messages.engine import CancelTransfer, Close, Interrupt, Interrupted, StepDone, TransferDone
from dunlin.messages.types import HostRegion, Priority, TransferKind, TransferStatus, Verdict, i64
from tests.simulator.engine.engine_bench import Bench, move_of, open_of, step_of, written


def moved(bench: Bench) -> list[tuple[float, int, TransferStatus]]:
    return [(at_s, done.ticket, done.status) for at_s, done in bench.of(TransferDone)]


def test_moves_go_one_after_another_and_an_urgent_one_first() -> None:
    bench = written()
    bench.tell(move_of(1, priority=Priority.CHECKPOINT), move_of(2, priority=Priority.CHECKPOINT))
    bench.tell(move_of(3, priority=Priority.KV), at_s=0.085)
    assert moved(bench) == [(0.095, 3, TransferStatus.OK), (0.1, 1, TransferStatus.OK), (0.11, 2, TransferStatus.OK)]


def test_a_cancelled_move_is_answered_at_once_and_the_next_one_goes() -> None:
    bench = written()
    bench.tell(move_of(1), move_of(2))
    bench.tell(CancelTransfer(1), CancelTransfer(9), at_s=0.085)
    assert moved(bench) == [(0.085, 1, TransferStatus.CANCELLED), (0.095, 2, TransferStatus.OK)]


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
    ((_, done),) = bench.of(TransferDone)
    host = replace(out.host or HostRegion(0, 0, 0, 0), checksum=done.checksum)
    if is_damaged:
        bench.tier.corrupt(0)
    bench.tell(Close(1), open_of(2), move_of(2, sequence=2, host=host, kind=TransferKind.HOST_TO_SLAB))
    again = replace(step_of(2, (2, 9, 10)), after=i64([2]))
    bench.tell(again)
    bench.world.run_to(90.0)
    back, answer = bench.heard[-2][1], bench.heard[-1][1]
    assert isinstance(back, TransferDone)
    assert isinstance(answer, StepDone)
    assert back.status is (TransferStatus.CORRUPT if is_damaged else TransferStatus.OK)
    assert list(answer.dropped) == ([2] if is_damaged else [])


def test_a_step_takes_longer_by_a_share_of_the_move_that_it_overlaps() -> None:
    bench = written(move_busy_s=0.004)
    bench.tell(move_of(1), step_of(2, (1, 10, 11)))
    bench.tell(step_of(3, (1, 11, 12)), at_s=0.3)
    # The move takes 10 ms from 0.08 s on, of which 4 block the step; the next step meets no move.
    assert [at_s for at_s, done in bench.of(StepDone) if done.step > 1] == [0.164, 0.38]
    assert bench.of(TransferDone)[0][1].busy_s == pytest.approx(0.004)


def test_a_move_while_no_step_runs_delays_none() -> None:
    bench = written(move_busy_s=0.004)
    bench.tell(move_of(1))
    bench.tell(step_of(2, (1, 10, 11)), at_s=0.1)
    assert [at_s for at_s, done in bench.of(StepDone) if done.step == 2] == [0.18]


def test_a_step_that_is_interrupted_has_lost_what_the_move_took_until_then() -> None:
    bench = written(move_s=0.5, move_busy_s=0.25)
    bench.tell(move_of(1), step_of(2, (1, 10, 100)))
    bench.tell(Interrupt(Verdict.DISCARD), at_s=0.12)
    # Half of the time is the move's: at 0.12 s two of eight layers are through; the interrupt comes at the next one.
    assert bench.of(Interrupted)[0][0] == pytest.approx(0.14, abs=0.021)
    assert bench.of(StepDone)[1][0] == bench.of(Interrupted)[0][0]


def test_copies_in_and_out_go_at_the_same_time_where_the_device_can() -> None:
    for is_duplex, landed in ((False, [0.1, 0.11]), (True, [0.1, 0.1])):
        bench = written(links=EngineLinks(is_duplex=is_duplex, host_busy_share=0.0))
        bench.tell(move_of(1), at_s=0.08)
        bench.tell(at_s=0.09)
        restored = bench.of(TransferDone)[0][1]
        bench = written(links=EngineLinks(is_duplex=is_duplex, host_busy_share=0.0))
        bench.tell(move_of(1), at_s=0.08)
        bench.tell(at_s=0.09)
        host = HostRegion(1, 1, 0, 640, checksum=restored.checksum)
        back = move_of(3, 0, kind=TransferKind.HOST_TO_SLAB, host=host, extent_start=i64([500]))
        out = move_of(2, host=HostRegion(2, 1, 640, 640))
        bench.tell(out, back)
        assert [at_s for at_s, done in bench.of(TransferDone) if done.ticket > 1] == landed
