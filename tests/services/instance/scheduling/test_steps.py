"""Outstanding steps: at most two, what each holds, and what an answer means."""

import pytest

from dunlin.messages.engine import (
    Step,
    StepDone,
)
from dunlin.messages.types import FinishReason, RequestClass, Why, i32
from services.instance.config import InstanceConfig
from services.instance.kv.kv_cache import KvCache
from services.instance.objectives.effective import EffectiveObjectives
from services.instance.objectives.miss_allowance import MissAllowance
from services.instance.scheduling.step_ledger import StepLedger
from services.instance.scheduling.steps import BatchComposer
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.table import SequenceTable
from simulator.engine.token_model import continuation
from tests.services.instance.bench import (
    ENGINE,
    ME,
    STEP_S,
    Bench,
    D,
    done,
    figures,
    make_place,
    of,
    only,
    ready_core,
)
from tests.services.instance.scheduling.test_interrupts import PerToken
from tests.settings import configured


def test_an_answer_to_a_step_that_is_not_outstanding_is_counted() -> None:
    direct = ready_core()
    assert direct.give(ENGINE, done(9, (1, 5))) == []
    assert direct.core.report().stale_total == 1


def test_the_engine_always_finds_the_next_step_queued_and_never_a_third() -> None:
    bench = Bench()
    bench.place(tokens=10, max_tokens=50)
    bench.run_until_quiet()
    assert bench.engine.most_queued == 2


def test_two_steps_are_composed_before_the_first_is_answered() -> None:
    direct = ready_core()
    first, second = of(Step, direct.give(D, make_place(tokens=10)))
    assert (list(first.start), list(first.stop), list(first.sample)) == ([0], [10], [1])
    assert (list(second.start), list(second.stop), list(second.sample)) == ([10], [11], [1])


def test_the_last_token_needs_no_step_after_it() -> None:
    direct = ready_core()
    assert len(of(Step, direct.give(D, make_place(tokens=10, max_tokens=1)))) == 1


def test_a_long_prompt_comes_in_chunks_and_decode_rows_ride_along() -> None:
    bench = Bench(scheduler__budget_tokens=16)
    short = bench.place(1, tokens=4, max_tokens=20)
    bench.run(3 * STEP_S)
    long = bench.place(2, tokens=40, max_tokens=4)
    bench.run_until_quiet()
    bench.check_empty()
    assert (short.tokens, long.tokens) == (short.expected, long.expected)
    mixed = [step for step in bench.engine.steps if len(step.sequence) == 2 and step.stop[1] - step.start[1] > 1]
    assert [(step.start[1], step.stop[1], step.sample[1]) for step in mixed] == [(0, 15, 0), (15, 30, 0), (30, 40, 1)]
    report = bench.core.report()
    together = [step for step in bench.engine.steps if len(step.sequence) > 1]
    assert (report.steps_total, report.multi_row_steps_total) == (len(bench.engine.steps), len(together))
    assert (report.mixed_steps_total, report.prefill_tokens_total, report.tokens_total) == (3, 44, 24)


def test_a_stop_in_the_first_step_drops_the_row_of_the_second() -> None:
    bench = Bench()
    attempt = bench.place(tokens=10, max_tokens=8, stop_ids=i32([continuation(make_place().tokens, 4, seed=1)[3]]))
    bench.run_until_quiet()
    bench.check_empty()
    assert (len(attempt.tokens), attempt.finish) == (4, FinishReason.STOP)
    dropped = [message.dropped for _, _, to, message in bench.world.sent if to == ME and isinstance(message, StepDone)]
    assert [len(rows) for rows in dropped] == [0, 0, 0, 0, 1]


def test_a_step_says_why_only_when_its_composition_changed() -> None:
    bench = Bench()
    bench.place(1, tokens=4, max_tokens=30)
    bench.run(10 * STEP_S)
    bench.place(2, tokens=4, max_tokens=5)
    bench.run_until_quiet()
    changed = [len(step.sequence) for step in bench.engine.steps if step.why is not None]
    assert changed == [1, 2, 1]
    assert len(bench.engine.steps) > 25


def test_the_first_step_in_another_layout_says_why_again() -> None:
    config = configured(InstanceConfig)
    composer = BatchComposer(
        config.scheduler, StepLedger(ENGINE, SequenceTable()), EffectiveObjectives(config.objectives), MissAllowance(1)
    )
    kv_cache, sequence = KvCache(64), Sequence(1, 1, D, make_place(tokens=10))
    kv_cache.allocate(sequence, 16)

    def next_why() -> Why | None:
        chosen = composer.choose_rows([sequence], kv_cache, 0.0)
        return composer.compose([sequence], chosen, kv_cache).why

    assert figures(next_why())["rows_before"] == 0
    assert next_why() is None
    composer.on_layers_changed(1)
    assert figures(next_why())["rows_before"] == 0


def test_the_reason_counts_the_rows_that_decode() -> None:
    direct = ready_core()
    direct.give(D, make_place(1, tokens=10))
    direct.give(D, make_place(2, tokens=10))
    step = only(Step, direct.give(ENGINE, done(1, (1, 5))))
    counted = figures(step.why)
    assert (counted["rows"], counted["decode_rows"], counted["tokens"]) == (2, 1, 11)


def test_steps_are_composed_for_the_layout_that_the_engine_is_in() -> None:
    direct = ready_core({"layout": 3})
    steps = of(Step, direct.give(D, make_place(tokens=10)))
    assert [step.layout for step in steps] == [3, 3]


def test_no_row_is_chosen_where_every_sequence_has_all_its_tokens_or_none_runs() -> None:
    config = configured(InstanceConfig)
    ledger = StepLedger(ENGINE, SequenceTable())
    composer = BatchComposer(config.scheduler, ledger, EffectiveObjectives(config.objectives), MissAllowance(1))
    kv_cache, sequence = KvCache(64), Sequence(1, 1, D, make_place(tokens=10, max_tokens=1))
    assert composer.choose_rows([sequence], kv_cache, 0.0) == [(sequence, 10)]
    sequence.pending = 1
    assert composer.choose_rows([sequence], kv_cache, 0.0) == []
    assert composer.choose_rows([], kv_cache, 0.0) == []


@pytest.mark.parametrize(("own_s", "tokens"), [(0.0, 90), (0.505, 50)])
def test_a_step_is_as_long_as_the_objective_of_the_answer_in_it_allows(own_s: float, tokens: int) -> None:
    """The cluster's 0.905 s between two tokens, or the request's own. Each token takes 0.01 s: one is of the answer,
    the others are of the chunk beside it.
    """
    direct = ready_core({"slots": 1024}, PerToken(), scheduler__policy="slo_aware", objectives__tpot_s=0.905)
    direct.give(D, make_place(1, tokens=4, tpot_objective_s=own_s))
    direct.give(D, make_place(2, tokens=400, request_class=RequestClass.BATCH))
    step = only(Step, direct.give(ENGINE, done(1, (1, 5))))
    assert (list(step.sequence), list(step.stop)[1] - list(step.start)[1]) == ([1, 2], tokens - 1)


@pytest.mark.parametrize(
    ("policy", "bounds"),
    [
        ("slo_aware", [("budget_tokens", 700), ("ttft_objective_s", 30.0), ("tpot_objective_s", 0.9)]),
        ("chunked", [("budget_tokens", 512)] * 3),
    ],
)
def test_the_reason_names_what_the_step_was_filled_up_to(policy: str, bounds: list[tuple[str, float]]) -> None:
    """Steps of batch work alone, of an interactive prompt, and of one beside an answer."""
    settings = {"scheduler__policy": policy, "scheduler__max_step_tokens": 700}
    objectives = {"objectives__tpot_s": 0.9, "objectives__ttft_s": 30.0}
    batch, chat = (ready_core({"slots": 1024}, PerToken(), **settings, **objectives) for _ in range(2))
    alone, _ = of(Step, batch.give(D, make_place(1, tokens=10, request_class=RequestClass.BATCH)))
    prompt, _ = of(Step, chat.give(D, make_place(1, tokens=10)))
    chat.give(D, make_place(2, tokens=10))
    beside = only(Step, chat.give(ENGINE, done(1, (1, 5))))
    names = {name for name, _ in bounds}
    found = [
        [(name, at) for name, at in figures(step.why).items() if name in names] for step in (alone, prompt, beside)
    ]
    assert found == [[bound] for bound in bounds]


def test_the_policy_knows_how_many_slots_are_taken() -> None:
    direct = ready_core({"slots": 1024})
    direct.give(D, make_place(tokens=100))
    budget, (sequence,) = direct.core._composer._budget, direct.core.sequences.running
    assert budget.slots == 1024
    assert budget.taken_slots == direct.core.lifecycle.kv_cache.held_positions(sequence) >= 100
