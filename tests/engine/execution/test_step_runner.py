"""Rows that leave a step at any of its safepoints, and come back."""

from dataclasses import replace
from typing import Any

import pytest

from dunlin.engine.decoder.loading.loader import LoadedModel
from dunlin.engine.execution.runner import EngineRunner
from dunlin.messages.engine import Close, Discard, Interrupt, Interrupted, StepDone, Unsupported
from dunlin.messages.types import Verdict, i64
from tests.engine.commands import make_open, make_step
from tests.engine.execution.interrupting import (
    LAYERS,
    LIMITS,
    Pauses,
    answers,
    drain,
    interrupt,
    poison,
    poisoned_runner,
    resume,
    run_to,
)
from tests.engine.execution.mixed_steps import (
    BEFORE,
    CUT,
    FOREIGN,
    LONG,
    MODES,
    SAMPLING,
    SHORT,
    SLACK,
    after,
    at_safepoint,
    before,
    cut_small,
    foreign,
    model_of,
    opens,
    safepoints,
    undisturbed,
)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_small(monkeypatch)


@pytest.fixture(scope="module", params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def loaded(mode: str, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return model_of(mode, tmp_path_factory.mktemp("model"))


NAMED = [(), (1,), (2,)]


@pytest.mark.parametrize("named", NAMED, ids=["all", "chunk", "decode"])
def test_rows_that_are_suspended_at_any_safepoint_go_on_as_if_they_had_not(
    loaded: LoadedModel, mode: str, named: tuple[int, ...]
) -> None:
    expected, (count, computed) = undisturbed(loaded), safepoints(loaded)
    assert count > (3 + 4) * LAYERS, "linear work and attention are in pieces"
    for at in range(1, count):
        runner, found = at_safepoint(loaded, at)
        runner.receive(interrupt(*named))
        (left, *events) = runner.work(lambda: False)
        assert (left.ticket, set(left.step), list(left.parked)) == (1, {2}, [1] * len(named or (1, 2)))
        assert list(left.sequence) == list(named or (1, 2))
        runner.receive(foreign(3))
        events += drain(runner)
        for number, sequence in enumerate(named or (1, 2)):  # one by one: they may stand at different places
            runner.receive(resume(10 + number, sequence))
            events += drain(runner)
        runner.receive(after(20))
        events += drain(runner)
        found.add(events)
        assert found.tokens == expected.tokens, at
        if mode == "deterministic":
            assert found.logprobs == expected.logprobs, at
        done = {event.step: event for event in answers(events, StepDone)}
        assert sorted(done) == [2, 3, *range(10, 10 + len(named or (1, 2))), 20]
        assert list(done[2].left) == list(named or (1, 2))
        counted = runner.steps.count
        assert counted.finished == counted.projected == BEFORE + computed + SLACK, "each layer once for each row"
        assert len(runner.steps.parked) == runner.steps.parked.size_bytes == 0


@pytest.mark.parametrize("named", NAMED, ids=["all", "chunk", "decode"])
def test_rows_that_are_discarded_at_any_safepoint_can_be_computed_again(
    loaded: LoadedModel, mode: str, named: tuple[int, ...]
) -> None:
    """In other slots; what they had written is not read any more."""
    expected, (count, _) = undisturbed(loaded), safepoints(loaded)
    rows = {1: (CUT, len(LONG), 700), 2: (len(SHORT), len(SHORT) + 1, 800)}
    for at in range(1, count):
        runner, found = at_safepoint(loaded, at)
        runner.receive(interrupt(*named, verdict=Verdict.DISCARD))
        events = runner.work(lambda: False)
        assert set(events[0].parked) == {0}
        for sequence in named or (1, 2):
            first = {1: 200, 2: 300}[sequence]
            poison(loaded, first, first + rows[sequence][1] - rows[sequence][0])
        runner.receive(foreign(3))
        runner.receive(make_step(4, *((sequence, *rows[sequence]) for sequence in named or (1, 2))))
        runner.receive(after(5))
        events += drain(runner)
        found.add(events)
        assert found.tokens == expected.tokens, at
        if mode == "deterministic":
            assert found.logprobs == expected.logprobs, at
        assert not answers(events, Unsupported)
        assert len(runner.steps.parked) == 0


def test_a_row_may_leave_at_every_safepoint_one_after_another(loaded: LoadedModel, mode: str) -> None:
    expected = undisturbed(loaded)
    runner, found = at_safepoint(loaded, 1)
    runner.receive(interrupt(2))
    events = runner.work(lambda: False)
    for number in range(10, 200):
        events += runner.receive(interrupt(1, ticket=number))
        events += runner.work(lambda: False) if runner.busy else []
        if not list(answers(events, Interrupted)[-1].sequence):
            break
        runner.receive(resume(number, 1))
        events += run_to(runner, 1)
    else:
        pytest.fail("it never came to its end")
    runner.receive(resume(250, 2))
    runner.receive(foreign(3))
    runner.receive(after(300))
    found.add([*events, *drain(runner)])
    assert found.tokens == expected.tokens
    assert number > 20
    assert runner.steps.count.finished == BEFORE + LAYERS * (len(LONG) - CUT + 1) + SLACK


def test_rows_at_the_same_place_are_resumed_together(loaded: LoadedModel) -> None:
    """Beside one whose sequence was closed meanwhile: it is dropped."""
    expected, (count, _) = undisturbed(loaded), safepoints(loaded)
    together = 0
    for at in range(1, count):
        runner, found = at_safepoint(loaded, at)
        runner.receive(interrupt())
        left = runner.work(lambda: False)[0]
        (refused,) = runner.receive(resume(5, 1, 2)) or [None]
        if refused is not None:
            assert isinstance(refused, Unsupported)
            assert (refused.what, refused.step, "different places" in refused.detail) == ("Resume", 5, True)
            assert len({*zip(left.layer, left.block, strict=True)}) == 2
            runner.receive(resume(6, 2))
            runner.receive(resume(7, 1))
        else:
            assert len({*zip(left.layer, left.block, strict=True)}) == 1
            together += 1
        runner.receive(foreign(3))
        runner.receive(after(20))
        found.add(drain(runner))
        assert found.tokens == expected.tokens
    assert together >= LAYERS


# -- one answer for everything, in order ---------------------------------------------------------------------------


def test_interrupts_before_the_same_safepoint_are_answered_first_then_the_steps(loaded: LoadedModel) -> None:
    runner, _ = at_safepoint(loaded, 4)
    for step in (foreign(3), make_step(4, (2, 21, 22, 310)), make_step(5, (2, 22, 23, 311))):
        runner.receive(step)
    assert runner.receive(interrupt(2, verdict=Verdict.DISCARD, ticket=1, up_to_step=4)) == []
    assert runner.receive(interrupt(ticket=2, up_to_step=3)) == []
    events = runner.work(lambda: False)
    first, second = events[0], events[1]
    assert (first.ticket, list(first.sequence), list(first.step), list(first.parked)) == (1, [2, 2], [2, 4], [0, 0])
    assert (second.ticket, list(second.sequence), list(second.step)) == (2, [1, 3], [2, 3])
    assert (list(second.parked), list(second.layer)[1], list(second.block)[1]) == ([1, 0], 0, 0)
    assert [(event.step, list(event.left)) for event in events[2:]] == [(2, [2, 1]), (3, [3]), (4, [2])]
    (refused,) = drain(runner)
    assert (refused.what, refused.step) == ("Step", 5)
    assert "tokens up to 23 are named, 21 are known" in refused.detail


def test_an_interrupt_is_answered_at_once_where_no_step_runs(loaded: LoadedModel) -> None:
    runner = poisoned_runner(loaded)
    (answer,) = runner.receive(interrupt(ticket=9))
    assert answer == Interrupted(ticket=9)
    runner.receive(opens()[0])
    runner.receive(make_step(1, (1, 0, CUT, 0), sample=[0]))
    assert runner.receive(interrupt(7, ticket=10, up_to_step=1)) == [Interrupted(ticket=10)]
    left, done = runner.receive(interrupt(ticket=11, up_to_step=1))
    assert (list(left.sequence), list(left.step), list(left.parked)) == ([1], [1], [0])
    assert (done.step, list(done.left), done.tokens_computed) == (1, [1], 0)
    assert not runner.busy


def test_the_rows_that_stay_go_on_and_the_step_says_who_left(loaded: LoadedModel) -> None:
    runner, _ = at_safepoint(loaded, 2)
    runner.receive(interrupt(1))
    assert len(runner.work(lambda: False)) == 1
    (done,) = drain(runner)
    assert (list(done.left), list(done.sequence)) == ([1], [2])
    assert (done.prefill_rows, done.decode_rows, done.tokens_computed) == (0, 1, 1)


def test_a_queued_step_is_taken_back_whole_and_the_running_one_goes_on(loaded: LoadedModel) -> None:
    runner, found = at_safepoint(loaded, 2)
    runner.receive(after(3))
    assert runner.receive(Interrupt(Verdict.DISCARD, ticket=7, step=3)) == []
    answer, empty = runner.work(lambda: False)
    assert (answer.ticket, list(answer.sequence), list(answer.step), list(answer.parked)) == (7, [1, 2], [3, 3], [0, 0])
    assert (empty.step, list(empty.left), empty.tokens_computed) == (3, [1, 2], 0)
    for step in (foreign(4), after(5)):
        runner.receive(step)
    found.add(drain(runner))
    assert found == undisturbed(loaded)


def test_a_step_of_decode_rows_has_no_safepoint(loaded: LoadedModel) -> None:
    runner, count = poisoned_runner(loaded), Pauses()
    run_to(runner, 0, *opens(), before())
    drain(runner)
    runner.receive(make_step(2, (2, len(SHORT), len(SHORT) + 1, 300)))
    (done,) = runner.work(count)
    assert (done.step, count.passed) == (2, 0)


def test_a_preemptible_step_of_decode_rows_has_safepoints(loaded: LoadedModel) -> None:
    runner, count = poisoned_runner(loaded), Pauses()
    run_to(runner, 0, *opens(), before())
    drain(runner)
    runner.receive(replace(make_step(2, (2, len(SHORT), len(SHORT) + 1, 300)), preemptible=True))
    runner.work(count)
    assert count.passed >= loaded.config.layers


def test_a_new_sequence_and_a_step_may_arrive_in_the_middle(loaded: LoadedModel) -> None:
    expected = undisturbed(loaded)
    runner, found = at_safepoint(loaded, 5)
    runner.receive(Close(3))
    runner.receive(make_open(4, FOREIGN, sampling=SAMPLING))
    runner.receive(make_step(3, (4, 0, len(FOREIGN), 400)))
    runner.receive(after(4))
    found.add(drain(runner))
    assert found.tokens == {**{each: expected.tokens[each] for each in (1, 2)}, 4: expected.tokens[3]}


# -- parked rows ---------------------------------------------------------------------------------------------------


def parked(loaded: LoadedModel, at: int = 6, **limits: Any) -> EngineRunner:
    """A runner in which both rows of the mixed step are parked."""
    runner, _ = at_safepoint(loaded, at, replace(LIMITS, **limits))
    runner.receive(interrupt())
    runner.work(lambda: False)
    return runner


def test_what_cannot_be_kept_is_discarded(loaded: LoadedModel) -> None:
    whole = parked(loaded).steps.parked.size_bytes
    bounds: list[tuple[dict[str, Any], list[int]]] = [
        ({"parked_rows": 1}, [1, 0]),
        ({"parked_bytes": whole - 1}, [1, 0]),
        ({"parked_bytes": 1}, [0, 0]),
    ]
    for limits, kept in bounds:
        runner, _ = at_safepoint(loaded, 6, replace(LIMITS, **limits))
        runner.receive(interrupt())
        left, _ = runner.work(lambda: False)
        assert list(left.parked) == kept
        assert runner.steps.parked.size_bytes <= whole - 1
        runner.receive(make_step(5, (2, len(SHORT), len(SHORT) + 1, 300)))
        (again,) = drain(runner)
        assert list(again.sequence) == [2]
    assert parked(loaded, parked_bytes=whole).steps.parked.size_bytes == whole


@pytest.mark.parametrize(
    ("command", "detail"),
    [
        (resume(5, 3), "sequence 3 has no parked row"),
        (resume(5), "names no sequence"),
        (resume(5, 1, 1), "or one twice"),
    ],
)
def test_what_cannot_be_resumed_is_refused(loaded: LoadedModel, command: Any, detail: str) -> None:
    runner = parked(loaded)
    (refused,) = runner.receive(command)
    assert (refused.what, refused.step, detail in refused.detail) == ("Resume", 5, True)
    assert len(runner.steps.parked) == 2


def test_a_row_is_resumed_once(loaded: LoadedModel) -> None:
    runner = parked(loaded)
    assert runner.receive(resume(5, 1)) == []
    (refused,) = runner.receive(resume(6, 1))
    assert refused.step == 6
    runner.receive(Discard(i64([1])))  # it is queued, not parked any more
    (done,) = drain(runner)
    assert (done.step, list(done.sequence)) == (5, [1])
    assert runner.receive(resume(7, 1))[0].step == 7


def test_a_step_that_names_a_parked_sequence_is_refused(loaded: LoadedModel) -> None:
    runner = parked(loaded)
    runner.receive(make_step(5, (2, len(SHORT), len(SHORT) + 1, 300)))
    (refused,) = drain(runner)
    assert (refused.what, refused.step) == ("Step", 5)
    assert "resume or discard it first" in refused.detail
    runner.receive(Discard(i64([2, 77])))
    runner.receive(make_step(6, (2, len(SHORT), len(SHORT) + 1, 300)))
    (done,) = drain(runner)
    assert list(done.sequence) == [2]


def test_a_closed_sequence_is_no_longer_parked_and_its_resume_drops_it(loaded: LoadedModel) -> None:
    runner = parked(loaded)
    runner.receive(resume(5, 2))
    runner.receive(Close(1))
    runner.receive(Close(2))
    assert (len(runner.steps.parked), runner.steps.parked.size_bytes) == (0, 0)
    runner.receive(resume(6, 1))
    assert [(done.step, list(done.dropped)) for done in drain(runner)] == [(5, [2]), (6, [1])]


def test_a_sequence_that_was_closed_while_it_ran_is_not_parked(loaded: LoadedModel) -> None:
    runner, _ = at_safepoint(loaded, 3)
    runner.receive(Close(1))
    runner.receive(interrupt())
    left, _ = runner.work(lambda: False)
    assert list(left.parked) == [0, 1]


def test_a_queued_resume_is_forgotten_by_an_interrupt_up_to_its_number(loaded: LoadedModel) -> None:
    runner = parked(loaded)
    runner.receive(resume(5, 1))
    assert list(runner.receive(interrupt(1, ticket=4, up_to_step=4))[0].sequence) == []
    left, done = runner.receive(interrupt(1, ticket=5, up_to_step=5))
    assert (list(left.sequence), list(left.step), list(left.parked), list(left.layer)) == ([1], [5], [0], [0])
    assert (done.step, list(done.left)) == (5, [1])
    assert 1 not in runner.steps.parked


def test_kv_is_valid_up_to_where_a_discarded_row_began(loaded: LoadedModel) -> None:
    runner, _ = at_safepoint(loaded, 6)
    runner.receive(interrupt(1, verdict=Verdict.DISCARD))
    runner.receive(make_step(5, (1, CUT + 1, len(LONG), 200)))
    refused = drain(runner)[-1]
    assert refused.detail == f"sequence 1: token {CUT + 1} is computed, but the KV before it ends at {CUT}"
