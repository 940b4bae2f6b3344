"""Preempted sequences and the host tier: kept, read back, refused, lost, damaged, late, and never answered."""

from typing import Any

import pytest

from dunlin.effects import Address
from dunlin.messages.dispatch import Continued, Ended, Preempted, Returned
from dunlin.messages.engine import MapHost, Transfer, Unsupported
from dunlin.messages.pool import CommitRegion, FindRegions, PendingWrites, RegionsRevoked, ReleaseRegion, ReserveRegion
from dunlin.messages.types import TransferKind, i64
from services.instance.sequence.sequence import request_name
from services.instance.sequence.states import SequenceState
from tests.services.instance.bench import ENGINE, ME, Attempt, Bench, Dispatcher, Silent

ROOM = 1 << 16
KV_BYTES = 64


def press(**settings: Any) -> tuple[Bench, list[Attempt]]:
    """Two sequences that fit one by one and not together: the second is preempted."""
    engine = {"slots": 64, "move_s": 0.05, **settings.pop("engine", {})}
    bench = Bench(**{"tier_bytes": ROOM, "engine": engine, "scheduler__allocate_ahead_tokens": 4, **settings})
    return bench, [bench.place(request, tokens=16, max_tokens=40) for request in (1, 2)]


def run_until_state(bench: Bench, state: SequenceState) -> None:
    """The preempted one's state."""

    def is_there() -> bool:
        found = [one for one in bench.core.sequences.by_arrival() if one.state is state]
        return bool(found) and (state is not SequenceState.WAITING or found[-1].preempted)

    assert bench.world.run(is_there, for_s=5)


def finish(bench: Bench, attempts: list[Attempt]) -> Dispatcher:
    bench.run_until_quiet()
    bench.check_empty()
    for attempt in attempts:
        assert attempt.tokens == attempt.expected
    return bench.dispatcher


def test_with_room_in_the_tier_nothing_is_computed_twice() -> None:
    bench, attempts = press()
    heard = finish(bench, attempts)
    report = bench.core.report()
    assert report.preemptions_total == len(heard.of(Preempted)) == len(heard.of(Continued)) == 1
    assert (report.recomputed_tokens_total, report.restored_regions_total, report.corrupt_regions_total) == (0, 1, 0)
    continued = heard.of(Continued)[0]
    assert continued.restored_tokens == report.restored_tokens_total > 16
    assert sum(sum(step.stop) - sum(step.start) for step in bench.engine.steps) == 2 * 55


def test_what_is_kept_is_all_layers_of_all_tokens_that_have_kv() -> None:
    bench, attempts = press()
    finish(bench, attempts)
    asked = bench.sent(ReserveRegion)[0]
    out, back = bench.sent(Transfer)
    assert (asked.request, asked.attempt, asked.dispatcher) == (2, 1, bench.dispatcher.address)
    assert (asked.region.layer_start, asked.region.layer_stop, asked.region.start) == (0, 2, 0)
    assert asked.length_bytes == asked.region.stop * KV_BYTES
    assert (out.kind, back.kind) == (TransferKind.SLAB_TO_HOST, TransferKind.HOST_TO_SLAB)
    assert out.region == back.region == asked.region
    assert sum(out.extent_length) == asked.region.stop
    assert out.sequence != back.sequence, "it is opened under a new number"
    committed, released = bench.sent(CommitRegion)[0], bench.sent(ReleaseRegion)[0]
    assert back.host is not None
    assert (committed.checksum, committed.handle) == (back.host.checksum, released.handle)


def test_no_slot_is_free_before_it_is_copied() -> None:
    bench, _ = press()
    run_until_state(bench, SequenceState.SPILLING)
    report = bench.core.report()
    assert report.moving_slots == bench.core.slot_table.held(2) > 0
    run_until_state(bench, SequenceState.WAITING)
    assert bench.core.report().moving_slots == 0
    run_until_state(bench, SequenceState.RESTORING)
    assert bench.core.report().moving_slots > 0
    bench.world.run(lambda: bool(bench.dispatcher.of(Continued)), for_s=5)
    report = bench.core.report()
    assert (report.moving_slots, report.owned_slots > 0) == (0, True)


def test_without_a_kvstore_it_is_computed_again() -> None:
    bench, attempts = press(tier_bytes=None)
    heard = finish(bench, attempts)
    report = bench.core.report()
    assert report.restored_tokens_total == 0
    assert report.recomputed_tokens_total == heard.of(Continued)[0].recomputed_tokens > 16
    assert bench.sent(Transfer) == []


def test_a_tier_that_is_full_refuses_and_it_is_computed_again() -> None:
    bench, attempts = press(tier_bytes=KV_BYTES)
    finish(bench, attempts)
    assert bench.core.report().recomputed_tokens_total > 16
    assert len(bench.sent(ReserveRegion)) == 1


def test_a_damaged_region_is_computed_again_and_reported() -> None:
    bench, attempts = press()
    run_until_state(bench, SequenceState.WAITING)
    bench.tier.corrupt(0)
    finish(bench, attempts)
    report = bench.core.report()
    assert (report.corrupt_regions_total, report.restored_regions_total, report.restored_tokens_total) == (1, 0, 0)
    assert report.recomputed_tokens_total > 16
    assert bench.sent(ReleaseRegion)[0].corrupt
    assert bench.kvstore is not None
    assert bench.kvstore.report().corrupt_total == 1


def test_the_tier_is_mapped_by_every_engine() -> None:
    bench, _ = press()
    bench.run(0.05)
    bench.seat.crash()
    bench.run(1.5)
    assert [message.size_bytes for message in bench.sent(MapHost, ENGINE)] == [ROOM, ROOM]


def test_a_kvstore_that_dies_takes_its_regions_along() -> None:
    bench, attempts = press()
    run_until_state(bench, SequenceState.WAITING)
    bench.kill_kvstore()
    finish(bench, attempts)
    assert bench.core.report().restored_tokens_total == 0


def test_what_another_attempt_claimed_meanwhile_is_not_read() -> None:
    bench, attempts = press()
    run_until_state(bench, SequenceState.WAITING)
    (kept,) = [one for sequence in bench.core.sequences for one in sequence.kept]
    other, ready = Address("instance", "other", 77), bench.engine.ready
    bench.world.add(other, Silent())
    bench.world.connect(other, kept.keeper)
    names = (request_name(bench.dispatcher.address, attempts[1].place), bench.dispatcher.address, 2, 2)
    bench.world.post(other, kept.keeper, FindRegions(1, *names, ready.weights_digest, ready.kv_dtype), 0.002)
    bench.run_until_quiet()
    (taken,) = [message for *_, message in bench.world.sent if isinstance(message, RegionsRevoked)]
    assert (list(taken.handle), list(taken.generation)) == ([kept.host.handle], [kept.host.generation])
    assert [move.kind for move in bench.sent(Transfer)] == [TransferKind.SLAB_TO_HOST]
    assert bench.sent(ReleaseRegion) == []
    assert bench.core.report().recomputed_tokens_total > 16
    assert [attempt.tokens for attempt in attempts] == [attempt.expected for attempt in attempts]


@pytest.mark.parametrize(
    "state", [SequenceState.ASKING, SequenceState.SPILLING, SequenceState.WAITING, SequenceState.RESTORING]
)
def test_a_kvstore_replaced_at_any_moment_is_told_of_nothing_that_it_does_not_have(state: SequenceState) -> None:
    bench, attempts = press()
    run_until_state(bench, state)
    bench.kill_kvstore()
    bench.start_kvstore(ROOM)
    finish(bench, attempts)
    assert bench.kvstore is not None
    assert bench.kvstore.stale_total == 0
    assert bench.core.report().corrupt_regions_total == 0


def test_a_kvstore_that_does_not_answer_holds_no_sequence_up() -> None:
    bench, attempts = press()
    bench.world.pause(bench.kvstore_address)
    bench.run_until_quiet(10)
    assert [attempt.tokens for attempt in attempts] == [attempt.expected for attempt in attempts]
    bench.world.resume(bench.kvstore_address)
    bench.run(0.5)
    bench.check_empty()


@pytest.mark.parametrize(
    "state",
    [
        SequenceState.DRAINING,
        SequenceState.ASKING,
        SequenceState.SPILLING,
        SequenceState.WAITING,
        SequenceState.RESTORING,
    ],
)
def test_a_preempted_sequence_can_be_cancelled_at_any_moment(state: SequenceState) -> None:
    bench, attempts = press()
    run_until_state(bench, state)
    bench.cancel(attempts[1])
    bench.run_until_quiet()
    bench.check_empty()
    assert [ended.request for ended in bench.dispatcher.of(Ended)] == [2]
    assert attempts[0].tokens == attempts[0].expected


@pytest.mark.parametrize("signal", [9, 11])
@pytest.mark.parametrize(
    "state",
    [
        SequenceState.DRAINING,
        SequenceState.ASKING,
        SequenceState.SPILLING,
        SequenceState.WAITING,
        SequenceState.RESTORING,
    ],
)
def test_an_engine_that_dies_in_a_preemption_loses_nothing(state: SequenceState, signal: int) -> None:
    bench, attempts = press()
    run_until_state(bench, state)
    bench.seat.crash(signal)
    finish(bench, attempts)
    assert bench.dispatcher.of(Returned) == []
    assert bench.core.report().corrupt_regions_total == 0


@pytest.mark.parametrize(
    "state", [SequenceState.ASKING, SequenceState.SPILLING, SequenceState.WAITING, SequenceState.RESTORING]
)
def test_an_engine_that_dies_in_a_preemption_and_stays_away_gives_everything_back(state: SequenceState) -> None:
    bench, attempts = press(recovery__engine_grace_s=0.5)
    run_until_state(bench, state)
    bench.seat.crash()
    bench.run(2.0)
    bench.check_empty()
    assert all(attempt.is_over for attempt in attempts)


def test_an_engine_that_cannot_map_the_tier_goes_on_without_it() -> None:
    bench, attempts = press()
    run_until_state(bench, SequenceState.WAITING)
    bench.world.post(ENGINE, ME, Unsupported("MapHost", "no such file"))
    finish(bench, attempts)
    report = bench.core.report()
    assert (report.restored_tokens_total, report.engine_restarts_total) == (0, 0)
    assert bench.kvstore is not None
    assert bench.kvstore.stale_total == 0


def test_no_tier_is_mapped_while_a_copy_to_the_old_one_is_under_way() -> None:
    bench, attempts = press(engine={"move_s": 0.2})
    run_until_state(bench, SequenceState.SPILLING)
    bench.kill_kvstore()
    bench.start_kvstore(ROOM)
    bench.run(0.05)
    assert len(bench.sent(MapHost)) == 1
    bench.run(0.2)
    assert len(bench.sent(MapHost)) == 2
    finish(bench, attempts)


def test_a_silent_kvstore_is_not_asked_again_before_it_speaks() -> None:
    bench, attempts = press(engine={"slots": 40})
    attempts = attempts[:1] + [bench.place(request, tokens=10, max_tokens=30) for request in (3, 4, 5)]
    bench.world.pause(bench.kvstore_address)
    bench.run_until_quiet()
    report = bench.core.report()
    assert report.preemptions_total > 1
    assert len(bench.sent(ReserveRegion)) == 1


def test_a_kvstore_that_is_back_hears_what_is_still_written_there() -> None:
    bench, _ = press(engine={"move_s": 0.5})
    run_until_state(bench, SequenceState.SPILLING)
    (out,) = bench.sent(Transfer)
    assert out.host is not None
    assert bench.kvstore is not None
    kvstore = bench.kvstore.address
    bench.world.disconnect(kvstore, ME)
    bench.world.connect(kvstore, ME)
    bench.run(0.1)
    assert bench.sent(PendingWrites) == [PendingWrites(i64([out.host.handle]), i64([out.host.generation]))]
    bench.run(1.0)
    bench.world.disconnect(kvstore, ME)
    bench.world.connect(kvstore, ME)
    bench.run(0.1)
    assert bench.sent(PendingWrites)[1:] == [PendingWrites()]


def test_a_sequence_whose_claim_is_withdrawn_does_not_wait_for_it() -> None:
    """As one that is on its way to another instance when the engine is lost, and comes back."""
    bench = Bench(tier_bytes=ROOM)
    bench.world.pause(bench.kvstore_address)
    attempt = bench.place(1, attempt=2)
    bench.run(0.01)
    (sequence,) = bench.core.sequences.by_arrival()
    assert (sequence.is_claiming, sequence.state) == (True, SequenceState.WAITING)
    bench.core.sequences.transition(sequence, SequenceState.LEAVING)
    bench.seat.crash()
    bench.run(1.0)
    bench.core.lifecycle.resume(sequence)
    bench.place(2)  # an event upon which the instance schedules
    bench.run(10.0)
    assert attempt.tokens == attempt.expected
