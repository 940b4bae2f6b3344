"""The report of an instance."""

from dataclasses import replace

from dunlin.messages.engine import EngineProgress, EngineStarted
from tests.services.instance.bench import (
    ENGINE,
    D,
    Direct,
    done,
    make_place,
    ready_core,
)


def test_a_report_carries_the_engines_process_and_progress() -> None:
    direct = ready_core()
    direct.give(ENGINE, EngineStarted(4711))
    direct.give(ENGINE, EngineProgress(33), 0.1)
    report = direct.core.report()
    assert (report.engine_pid, report.safepoints, report.ready, report.capacity_slots) == (4711, 33, True, 256)


def test_a_report_without_an_engine_has_neither_slots_nor_weights() -> None:
    report = Direct().core.report()
    assert (report.ready, report.capacity_slots, report.max_positions) == (False, 0, 0)
    assert (report.weights_digest, report.kv_dtype, report.epoch) == ("", "", 0)


def test_a_report_counts_slots_and_sequences_by_their_use() -> None:
    direct = ready_core({"slots": 64}, scheduler__allocate_ahead_tokens=8)
    direct.give(D, make_place(1, tokens=10, max_tokens=40))
    direct.give(D, make_place(2, tokens=50, max_tokens=8))
    report = direct.core.report()
    assert (report.running, report.waiting, report.waiting_tokens, report.head_waiting_tokens) == (1, 1, 50, 50)
    assert (report.capacity_slots, report.free_slots, report.owned_slots) == (64, 46, 18)
    assert (report.reserved_slots, report.moving_slots, report.quarantined_slots) == (0, 0, 0)
    assert (report.outstanding_steps, report.steps_total, report.epoch, report.plan_version) == (2, 0, 1, 1)
    answer = replace(done(1, (1, 5)), prefill_rows=1, tokens_computed=10)
    direct.give(ENGINE, answer)
    report = direct.core.report()
    assert (report.steps_total, report.tokens_total, report.prefill_tokens_total) == (1, 1, 10)
