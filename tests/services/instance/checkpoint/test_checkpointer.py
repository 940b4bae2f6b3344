"""Running sequences are copied to the host tier beside their steps: how much, how fast, and when not."""

from typing import Any

import pytest

from dunlin.messages.engine import CancelTransfer, Step, Transfer, TransferDone
from dunlin.messages.pool import CommitRegion, ReleaseRegion, ReserveRegion
from dunlin.messages.types import Priority, RequestClass, TransferKind, TransferStatus
from services.instance.checkpoint.copy_budget import BURST_S, REGION_OVERHEAD_S
from services.instance.sequence.states import SequenceState
from tests.services.instance.bench import ENGINE, STEP_S, Bench

ROOM = 1 << 18
KV_BYTES = 64


def make_bench(**settings: Any) -> Bench:
    engine = {"slots": 1024, "move_s": 0.002, **settings.pop("engine", {})}
    defaults = {"tier_bytes": ROOM, "engine": engine, "checkpoint__min_tokens": 16, "checkpoint__engine_share": 0.5}
    return Bench(**{**defaults, **settings})


def spans(bench: Bench) -> list[tuple[int, int]]:
    """What was copied out, in order."""
    moves = [move for move in bench.sent(Transfer) if move.kind is TransferKind.SLAB_TO_HOST]
    return [(move.region.start, move.region.stop) for move in moves]


def test_what_is_computed_is_kept_in_whole_blocks_one_after_the_other() -> None:
    bench = make_bench()
    bench.place(tokens=40, max_tokens=60)
    bench.run(0.5)
    (sequence,) = bench.core.sequences.by_arrival()
    assert spans(bench)[:2] == [(0, 32), (32, 48)]
    for (_, stop), (start, after) in zip(spans(bench), spans(bench)[1:], strict=False):
        assert (start, after % 16) == (stop, 0)
    assert sequence.kept_tokens == spans(bench)[-1][1] <= sequence.valid
    assert {ask.priority for ask in bench.sent(ReserveRegion)} == {Priority.CHECKPOINT}
    report = bench.core.report()
    assert report.checkpointed_tokens_total == sequence.kept_tokens
    bench.run_until_quiet()
    bench.check_empty()


def test_a_long_prompt_is_copied_in_large_regions() -> None:
    bench = make_bench(checkpoint__max_tokens=128, engine={"slots": 1024})
    bench.place(tokens=500, max_tokens=30)
    bench.run(0.2)
    assert spans(bench)[:4] == [(0, 128), (128, 256), (256, 384), (384, 496)]


def test_no_step_waits_for_a_copy() -> None:
    with_copies, without = make_bench(), make_bench(checkpoint__engine_share=0)
    ends = []
    for bench in (with_copies, without):
        bench.place(tokens=40, max_tokens=100)
        bench.run_until_quiet()
        ends.append(bench.world.now_s)
        assert all(not step.after for step in bench.sent(Step))
    assert ends[0] == pytest.approx(ends[1], abs=STEP_S)
    assert with_copies.core.report().checkpointed_tokens_total > 100
    assert without.sent(Transfer) == []


@pytest.mark.parametrize("share", [0.025, 0.1])
def test_the_engine_spends_no_more_than_its_share_on_copies(share: float) -> None:
    bench = make_bench(checkpoint__engine_share=share, engine={"slots": 4096, "move_s": 0.001, "move_busy_s": 0.004})
    attempts = [bench.place(request, tokens=30, max_tokens=300) for request in range(1, 9)]
    began_s = bench.world.now_s
    bench.run(2.0)
    busy_s = bench.core.report().checkpoint_busy_s_total
    assert 0.6 * share <= busy_s / (bench.world.now_s - began_s + BURST_S) <= share + 0.002
    assert not any(attempt.is_over for attempt in attempts)


@pytest.mark.parametrize("share", [0.01, 0.025])
def test_copies_that_cost_nothing_do_not_make_a_region_of_every_few_tokens(share: float) -> None:
    engine = {"slots": 4096, "move_s": 0.001, "move_busy_s": 0.0}
    bench = make_bench(checkpoint__engine_share=share, checkpoint__pressure_share=0.0, engine=engine)
    for request in range(1, 9):
        bench.place(request, tokens=30, max_tokens=300)
    bench.run(2.0)
    most = (2.0 + BURST_S) * share / REGION_OVERHEAD_S
    assert 0.5 * most <= len(spans(bench)) <= most + 1


def test_after_a_rest_a_prompt_is_copied_as_soon_as_it_is_computed() -> None:
    share, busy_s = 0.025, 0.004
    bench = make_bench(checkpoint__engine_share=share, engine={"slots": 4096, "move_s": busy_s, "move_busy_s": busy_s})
    bench.run(60.0)
    for request in range(1, 9):
        bench.place(request, tokens=100, max_tokens=300)
    bench.run(0.1)
    at_once = int(BURST_S * share / (busy_s + REGION_OVERHEAD_S)) + 1
    assert len(spans(bench)) == at_once, "what was saved in a minute is that of the last second"
    bench.run(0.8)
    later = len(spans(bench)) - at_once
    assert 0.8 * share / (busy_s + REGION_OVERHEAD_S) - 1 <= later <= 0.9 * share / (busy_s + REGION_OVERHEAD_S) + 1


def test_copies_of_victims_are_faster_the_fewer_slots_are_free_and_of_batch_work_first() -> None:
    made: list[int] = []
    for slots, others in ((4096, 0), (640, 0), (640, 2)):
        engine = {"slots": slots, "move_s": 0.001, "move_busy_s": 0.004}
        bench = make_bench(checkpoint__engine_share=0.01, checkpoint__pressure_share=0.2, engine=engine)
        for request in range(1, 7):
            request_class = RequestClass.BATCH if request > 6 - others else RequestClass.INTERACTIVE
            bench.place(request, tokens=60, max_tokens=140, request_class=request_class)
        bench.run(0.8)
        made.append(len(spans(bench)))
        batch = sum(each.kept_tokens for each in bench.core.sequences if each.is_batch)
        assert others == 0 or batch > 0.9 * sum(each.valid for each in bench.core.sequences if each.is_batch)
    assert made[0] <= (0.8 + BURST_S) * 0.01 / 0.005 + 1 < 8 < made[1]
    assert made[2] < made[1], "chat has no part in it while batch work gives way"


def test_no_copy_is_made_under_pressure_where_checkpoints_are_off() -> None:
    bench = make_bench(checkpoint__engine_share=0.0, checkpoint__pressure_share=0.5, engine={"slots": 128})
    bench.place(tokens=90, max_tokens=30)
    bench.run(0.3)
    assert spans(bench) == []


def test_who_would_lose_most_is_first() -> None:
    bench = make_bench()
    for request, tokens in ((1, 20), (2, 50), (3, 90)):
        bench.place(request, tokens=tokens, max_tokens=100)
    bench.run(0.06)
    asked = [ask.request for ask in bench.sent(ReserveRegion)]
    assert asked[:3] == [1, 3, 2], "the first had begun alone"


def test_one_that_ends_gives_up_its_copy_and_what_is_kept() -> None:
    bench = make_bench(engine={"slots": 1024, "move_s": 0.5})
    attempt = bench.place(tokens=40, max_tokens=100)
    bench.run(0.1)
    assert len(spans(bench)) == 1
    bench.cancel(attempt)
    bench.run_until_quiet()
    assert len(bench.sent(CancelTransfer, ENGINE)) == 1
    bench.check_empty()
    assert bench.sent(CommitRegion) == []
    assert bench.core.report().checkpointed_tokens_total == 0


def test_a_step_that_may_write_the_slots_is_sent_after_the_copy_was_cancelled() -> None:
    bench = make_bench(engine={"slots": 64, "move_s": 0.5}, scheduler__allocate_ahead_tokens=4)
    attempt = bench.place(tokens=40, max_tokens=20)
    bench.run(0.05)
    bench.place(2, tokens=40, max_tokens=4)
    bench.cancel(attempt)
    bench.run_until_quiet()
    to_engine = [message for _, sender, to, message in bench.world.sent if to == ENGINE]
    cancelled = next(index for index, message in enumerate(to_engine) if isinstance(message, CancelTransfer))
    second = [i for i, message in enumerate(to_engine) if isinstance(message, Step) and 2 in message.sequence]
    assert cancelled < second[0]


def test_a_preemption_copies_only_what_is_not_kept_yet() -> None:
    bench = make_bench(engine={"slots": 64, "move_s": 0.002}, scheduler__allocate_ahead_tokens=4)
    attempts = [bench.place(request, tokens=16, max_tokens=40) for request in (1, 2)]
    bench.run_until_quiet()
    bench.check_empty()
    for attempt in attempts:
        assert attempt.tokens == attempt.expected
    spilled = [ask for ask in bench.sent(ReserveRegion) if ask.priority is Priority.KV]
    assert len(spilled) == 1
    assert spilled[0].region.start == 16
    assert bench.core.report().recomputed_tokens_total == 0


def test_one_that_came_back_keeps_its_regions() -> None:
    bench = make_bench(engine={"slots": 64, "move_s": 0.002}, scheduler__allocate_ahead_tokens=4)
    for request in (1, 2):
        bench.place(request, tokens=16, max_tokens=40)
    assert bench.world.run(lambda: bench.core.report().restored_tokens_total > 0, for_s=5)
    (sequence,) = [one for one in bench.core.sequences.by_arrival() if one.place.request == 2]
    assert (sequence.state, sequence.kept_tokens >= 16) == (SequenceState.RUNNING, True)


def test_a_full_tier_stops_checkpoints_for_a_while_and_never_a_spill() -> None:
    bench = make_bench(
        tier_bytes=64 * KV_BYTES, engine={"slots": 64, "move_s": 0.002}, scheduler__allocate_ahead_tokens=4
    )
    attempts = [bench.place(request, tokens=16, max_tokens=40) for request in (1, 2)]
    bench.run_until_quiet()
    bench.check_empty()
    for attempt in attempts:
        assert attempt.tokens == attempt.expected
    report = bench.core.report()
    assert (report.preemptions_total, report.recomputed_tokens_total) == (1, 0)
    assert report.restored_tokens_total > 16


def test_a_copy_that_fails_leaves_nothing() -> None:
    bench = make_bench(engine={"slots": 1024, "move_s": 9.0})
    bench.place(tokens=40, max_tokens=60)
    bench.run(0.1)
    (move,) = bench.sent(Transfer)
    bench.world.post(ENGINE, bench.core.address, TransferDone(move.ticket, TransferStatus.FAILED, detail="no"))
    bench.run(0.05)
    assert len(bench.sent(ReleaseRegion)) == 1
    assert len(bench.sent(ReserveRegion)) == 1, "not again at once"
    (sequence,) = bench.core.sequences.by_arrival()
    assert sequence.kept == []


def test_a_kvstore_that_goes_takes_what_was_kept() -> None:
    bench = make_bench()
    attempt = bench.place(tokens=40, max_tokens=100)
    bench.run(0.2)
    (sequence,) = bench.core.sequences.by_arrival()
    assert sequence.kept
    bench.kill_kvstore()
    bench.run(0.1)
    assert sequence.kept == []
    bench.start_kvstore(ROOM)
    bench.run(0.3)
    assert sequence.kept_tokens > 40
    bench.run_until_quiet()
    bench.check_empty()
    assert attempt.tokens == attempt.expected


def test_nothing_is_kept_that_a_step_has_not_answered() -> None:
    bench = make_bench(engine={"slots": 4096, "token_s": 0.01}, scheduler__budget_tokens=128)
    bench.place(tokens=600, max_tokens=8)
    assert bench.world.run(lambda: bool(bench.sent(ReserveRegion)), for_s=10)
    (sequence,) = bench.core.sequences.by_arrival()
    assert bench.sent(ReserveRegion)[0].region.stop == sequence.valid == 128 < sequence.issued


def test_of_sequences_with_as_much_to_copy_the_oldest_is_copied_first() -> None:
    bench = make_bench()
    for request in (1, 2, 3):
        bench.place(request, tokens=40, max_tokens=60)
    assert bench.world.run(lambda: len(bench.sent(ReserveRegion)) == 2, for_s=10)
    assert [ask.request for ask in bench.sent(ReserveRegion)] == [1, 2], "2 and 3 are computed in one step"
