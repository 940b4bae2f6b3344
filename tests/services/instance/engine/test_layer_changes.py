"""Layers go and come back under an instance's core: its sequences stay, with their KV, through orders and crashes."""

from typing import Any

import pytest

from dunlin.effects import Send
from dunlin.messages.dispatch import Continued, Preempted, Refusal, Refused, Returned
from dunlin.messages.engine import Remap, RemapDone, Step, Transfer, Unsupported
from dunlin.messages.plan import RemapLayers, RemapLayersDone
from dunlin.messages.types import FinishReason, RemapPhase, i32
from services.instance.scheduling.step_rows import StepRows
from tests.services.instance.bench import ENGINE, MANAGER, ME, Bench, D, Direct, done, make_place, of, only, ready_core

LAYERS = {"layers": i32(range(4)), "weights_bytes": 4096, "move_s": 0.02}
ALL, LOWER, MIDDLE = (0, 1, 2, 3), (0, 1), (1, 2)
AWAY = [RemapPhase.PREPARE, RemapPhase.DROP_WEIGHTS, RemapPhase.RELEASE_KV]
BACK = [RemapPhase.PREPARE, RemapPhase.LOAD, RemapPhase.COMMIT]


def make_bench(**config: Any) -> Bench:
    return Bench(engine=LAYERS, remap__restore_after_s=config.pop("restore_after_s", 60.0), **config)


def order(bench: Bench, ticket: int, layers: tuple[int, ...] = ()) -> None:
    bench.world.post(MANAGER, ME, RemapLayers(1, ticket, i32(layers)))


def answers(bench: Bench) -> list[tuple[int, int, tuple[int, ...], int, str]]:
    found = [message for _, message in bench.manager.heard if isinstance(message, RemapLayersDone)]
    return [(one.ticket, one.layout, tuple(one.layers), one.slots, one.detail) for one in found]


def phases(bench: Bench) -> list[RemapPhase]:
    return [message.phase for message in bench.sent(Remap)]


def shown(bench: Bench) -> tuple[bool, int, int, int, int]:
    report = bench.core.report()
    return report.ready, report.layout, report.layers_held, report.model_layers, report.capacity_slots


def test_an_idle_instance_gives_up_layers_and_their_kv_and_gets_them_back() -> None:
    bench = make_bench()
    attempt = bench.place(1, tokens=40)
    bench.run_until_quiet()
    order(bench, 1, LOWER)
    bench.run(0.2)
    assert phases(bench) == AWAY
    assert answers(bench) == [(1, 1, LOWER, 512, "")]
    assert shown(bench) == (False, 1, 2, 4, 768)
    assert bench.core.lifecycle.kv_cache.cached_slots == 0, "prefixes had KV of all layers"
    order(bench, 2)
    bench.run(0.2)
    assert phases(bench) == [*AWAY, *BACK]
    assert answers(bench)[1:] == [(2, 2, ALL, 256, "")]
    assert shown(bench) == (True, 2, 4, 4, 256)
    again = bench.place(2, tokens=40)
    bench.run_until_quiet()
    assert (attempt.finish, again.finish) == (FinishReason.LENGTH, FinishReason.LENGTH)
    bench.check_empty()


def test_sequences_stand_while_layers_are_missing_and_go_on_with_their_kv() -> None:
    bench = make_bench()
    attempts = [bench.place(request, tokens=20, max_tokens=60) for request in (1, 2)]
    bench.run(0.1)
    order(bench, 1, LOWER)
    bench.run(0.2)
    assert phases(bench) == AWAY[:2], "the KV of the other layers is kept for them"
    stood = [len(attempt.tokens) for attempt in attempts]
    steps = len(bench.sent(Step))
    assert 0 < stood[0] < 60
    bench.run(5.0)
    assert ([len(attempt.tokens) for attempt in attempts], len(bench.sent(Step))) == (stood, steps)
    order(bench, 2)
    bench.run_until_quiet()
    assert phases(bench) == [*AWAY[:2], RemapPhase.ABORT, *BACK]
    assert all(attempt.tokens == attempt.expected for attempt in attempts)
    assert {step.layout for step in bench.sent(Step)} == {0, 2}
    assert bench.core.report().recomputed_tokens_total == 0
    assert not any(isinstance(message, Preempted | Returned) for _, message in bench.dispatcher.heard)
    bench.check_empty()


def test_steps_go_on_until_the_layers_go() -> None:
    bench = make_bench(engine_watch__stuck_s=30.0)
    bench.place(1, tokens=20, max_tokens=60)
    bench.run(0.1)
    order(bench, 1, LOWER)
    bench.run(0.2)
    sent = [message for _, sender, _, message in bench.world.sent if sender == ME]
    after = sent[sent.index(bench.sent(Remap)[1]) :]
    assert not [message for message in after if isinstance(message, Step)]


def test_layers_that_no_group_computes_with_come_back_by_themselves() -> None:
    bench = make_bench(restore_after_s=2.0)
    attempt = bench.place(1, tokens=20, max_tokens=60)
    bench.run(0.1)
    order(bench, 1, LOWER)
    bench.run(1.0)
    assert not bench.core.layer_changes.is_whole
    bench.run(1.5)
    assert bench.core.layer_changes.is_whole
    bench.run_until_quiet()
    assert attempt.tokens == attempt.expected
    assert answers(bench) == [(1, 1, LOWER, 512, "")]


def test_nothing_is_taken_while_layers_are_missing() -> None:
    bench = make_bench()
    order(bench, 1, LOWER)
    bench.run(0.2)
    attempt = bench.place(1)
    bench.run(0.1)
    (refused,) = [message for message in attempt.heard if isinstance(message, Refused)]
    assert refused.reason is Refusal.NOT_READY


def test_layers_that_are_neither_fewer_nor_more_come_first_and_then_others_go() -> None:
    bench = make_bench()
    order(bench, 1, LOWER)
    order(bench, 2, MIDDLE)
    bench.run(1.0)
    assert [answer[0] for answer in answers(bench)] == [1, 2]
    assert tuple(bench.engine.layers.held) == MIDDLE
    order(bench, 3)
    bench.run(1.0)
    assert shown(bench)[2:] == (4, 4, 256)


def test_a_newer_order_takes_the_place_of_one_under_way() -> None:
    bench = make_bench()
    bench.place(1, tokens=20, max_tokens=60)
    bench.run(0.1)
    order(bench, 1, LOWER)
    bench.run(0.0015)
    order(bench, 2)
    bench.run(0.5)
    assert answers(bench)[0][4] == "a newer order came"
    assert answers(bench)[1][2:] == (ALL, 256, "")
    bench.run_until_quiet()
    assert bench.dispatcher.attempts[1, 1].finish is FinishReason.LENGTH


def test_orders_are_fenced() -> None:
    bench = make_bench()
    order(bench, 5, LOWER)
    bench.run(0.2)
    order(bench, 4)
    order(bench, 6, (1, 0))
    order(bench, 7, (4,))
    bench.run(0.2)
    assert [(answer[0], answer[4].split(":")[0]) for answer in answers(bench)] == [
        (5, ""),
        (4, "stale"),
        (6, "[1, 0] are not layers of 4, ascending"),
        (7, "[4] are not layers of 4, ascending"),
    ]
    assert tuple(bench.engine.layers.held) == LOWER


def crash_at(bench: Bench, phase: RemapPhase, count: int, when: str) -> None:
    """Run until the engine was told a phase, or has answered it, so many times; then kill it."""
    kind = Remap if when == "told" else RemapDone

    def is_there() -> bool:
        return len([one for *_, one in bench.world.sent if isinstance(one, kind) and one.phase is phase]) >= count

    assert bench.world.run(is_there, for_s=30.0)
    bench.run(0.0011)
    bench.seat.crash()


@pytest.mark.parametrize("when", ["told", "answered"])
@pytest.mark.parametrize(
    ("phase", "count", "busy"),
    [
        (RemapPhase.PREPARE, 1, True),
        (RemapPhase.DROP_WEIGHTS, 1, True),
        (RemapPhase.RELEASE_KV, 1, False),
        (RemapPhase.PREPARE, 2, True),
        (RemapPhase.LOAD, 1, True),
        (RemapPhase.LOAD, 1, False),
        (RemapPhase.COMMIT, 1, True),
    ],
)
def test_a_crash_in_a_phase_costs_no_kv(phase: RemapPhase, count: int, busy: bool, when: str) -> None:
    bench = make_bench(restore_after_s=0.4)
    attempts = [bench.place(request, tokens=20, max_tokens=60) for request in (1, 2)] if busy else []
    bench.run(0.1)
    order(bench, 1, LOWER)
    crash_at(bench, phase, count, when)
    bench.run(10.0)
    assert bench.core.layer_changes.is_whole
    assert answers(bench)[0][:1] + answers(bench)[0][2:3] + answers(bench)[0][4:] == (1, LOWER, "")
    assert all(attempt.tokens == attempt.expected for attempt in attempts)
    report = bench.core.report()
    assert (report.recomputed_tokens_total, report.engine_restarts_total) == (0, 1)
    assert (len([one for one in bench.dispatcher.of(Continued) if one.revived_tokens]) > 0) == busy
    bench.check_empty()


def test_copies_name_the_layout_in_force() -> None:
    bench = make_bench(tier_bytes=1 << 20, checkpoint__min_tokens=16, checkpoint__engine_share=0.5)
    bench.place(1, tokens=40, max_tokens=180)
    bench.run(0.1)
    order(bench, 1, LOWER)
    bench.run(0.2)
    order(bench, 2)
    bench.run_until_quiet()
    assert {copy.layout for copy in bench.sent(Transfer)} == {0, 2}
    assert bench.core.report().stale_total == 0


class Told:
    """A core alone whose engine has 2 of 4 layers and twice the slots, and one sequence."""

    def __init__(self, **config: Any) -> None:
        self.direct: Direct = ready_core({"layers": i32(ALL), "model_layers": 4}, **config)
        self.direct.give(D, make_place(tokens=20))
        self.direct.give(ENGINE, done_of(self.direct))
        (prepare,) = of(Remap, self.direct.give(MANAGER, RemapLayers(1, 1, i32(LOWER))))
        assert prepare.phase is RemapPhase.PREPARE
        self.answer(prepare, ALL, 256)
        assert of(Remap, self.direct.give(ENGINE, done_of(self.direct))) == [], "a step is outstanding"
        (drop,) = of(Remap, self.direct.give(ENGINE, done_of(self.direct)))
        assert drop.phase is RemapPhase.DROP_WEIGHTS
        self.answer(drop, LOWER, 512)

    @property
    def sequence(self) -> Any:
        return self.direct.core.sequences.by_arrival()[0]

    def answer(self, told: Remap, layers: tuple[int, ...], slots: int) -> list[Send]:
        return self.direct.give(ENGINE, RemapDone(told.layout, told.phase, i32(layers), slots, 16))


def done_of(direct: Direct) -> Any:
    """The answer to the oldest outstanding step, whose rows all sample nothing."""
    rows: StepRows = next(iter(direct.core.steps._outstanding.values()))
    number = next(iter(direct.core.steps._outstanding))
    return done(number, *((one, 7) for one, samples in zip(rows.numbers, rows.samples, strict=True) if samples))


def test_slots_that_only_fewer_layers_leave_are_evacuated_before_more_come() -> None:
    told = Told()
    core = told.direct.core
    sequence = told.sequence
    assert core.slot_table.capacity == 512
    assert core.slot_table.allocate("filler", core.slot_table.free - 100)
    assert core.slot_table.allocate(sequence.number, 100)
    assert core.lifecycle.kv_cache.sequences_beyond(256) == [sequence.number]
    core.slot_table.release("filler")
    sends = told.direct.give(MANAGER, RemapLayers(1, 2))
    assert of(Remap, sends)[0].phase is RemapPhase.ABORT
    settled = told.direct.give(ENGINE, RemapDone(1, RemapPhase.ABORT, i32(LOWER), 512, 16))
    assert only(Preempted, settled).why.policy == "remap"
    prepare = only(Remap, settled)
    assert prepare.phase is RemapPhase.PREPARE
    assert core.slot_table.withheld == 256
    load = only(Remap, told.answer(prepare, LOWER, 256))
    assert (load.phase, core.slot_table.capacity) == (RemapPhase.LOAD, 256)
    core.slot_table.check_integrity()


def test_without_its_layers_an_instance_returns_what_it_has() -> None:
    told = Told(remap__restore_after_s=3.0)
    told.direct.give(MANAGER, RemapLayers(1, 2))
    prepare = only(Remap, told.direct.give(ENGINE, RemapDone(1, RemapPhase.ABORT, i32(LOWER), 512, 16)))
    load = only(Remap, told.answer(prepare, LOWER, 256))
    sends = told.direct.give(ENGINE, Unsupported("Remap", "LOAD: no such file", layout=load.layout))
    assert only(Returned, sends).why.rejected[0].reason == "LOAD: no such file"
    assert only(RemapLayersDone, sends).detail == "LOAD: LOAD: no such file"
    abort = only(Remap, sends)
    assert abort.phase is RemapPhase.ABORT
    told.answer(abort, LOWER, 512)
    (due,) = [timer for timer in told.direct.timers if timer.delay_s == 3.0][-1:]
    assert only(Remap, told.direct.give(ME, due.message)).phase is RemapPhase.PREPARE


def test_a_late_answer_changes_nothing() -> None:
    told = Told()
    before = told.direct.core.report()
    told.direct.give(ENGINE, RemapDone(9, RemapPhase.COMMIT, i32(ALL), 9, 16))
    told.direct.give(ENGINE, Unsupported("Remap", "late", layout=9))
    after = told.direct.core.report()
    assert (after.capacity_slots, after.stale_total) == (before.capacity_slots, before.stale_total + 2)
