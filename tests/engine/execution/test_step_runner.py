"""Rows that leave a step at any of its safepoints, and come back."""

from dataclasses import replace
from typing import Any

import pytest

from dunlin.engine.attention import deterministic, fused, paged
from dunlin.engine.decoder.loader import LoadedModel
from dunlin.engine.execution.limits import RunnerLimits
from dunlin.engine.execution.runner import EngineRunner
from dunlin.engine.transfer.transit_rooms import TransitRooms
from dunlin.messages.engine import Close, Discard, Interrupt, Interrupted, Step, StepDone, Unsupported
from dunlin.messages.types import SamplingParams, Verdict, i64
from tests.engine.attention.reference import backend_named
from tests.engine.build import load, make_checkpoint
from tests.engine.commands import make_open, make_step
from tests.engine.execution.interrupting import (
    LAYERS,
    LIMITS,
    Pauses,
    Tokens,
    answers,
    drain,
    interrupt,
    poison,
    poisoned_runner,
    resume,
    run_to,
)

SAMPLING = SamplingParams(temperature=0.0, logprobs=0)
LONG = [(7 * at * at + 3 * at + 11) % 500 for at in range(60)]
SHORT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]
FOREIGN = [11, 22, 33, 44, 55]
CUT = 24
"""Tokens of LONG that an earlier step computes."""
BEFORE = LAYERS * (CUT + len(SHORT))
"""Tokens times layers of the step before."""
SLACK = LAYERS * len(FOREIGN) + LAYERS * 2
"""Tokens times layers of the foreign step and of the one after."""


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a row of a few tokens has several pieces of attention."""
    monkeypatch.setattr(fused, "QUERY_BLOCK", 16)
    monkeypatch.setattr(fused, "KEY_BLOCK", 32)
    monkeypatch.setattr(deterministic, "RUN_QUERIES", 16)
    monkeypatch.setattr(paged, "QUERY_BLOCK", 16)
    monkeypatch.setattr(paged, "PIECE_PAIRS", 16 * 32)


@pytest.fixture(scope="module", params=["deterministic", "fast", "paged"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def loaded(mode: str, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """The fast mode twice, with either backend."""
    directory = make_checkpoint(tmp_path_factory.mktemp("model"), seed=2)
    if mode == "paged":
        backend_named("paged")  # skips where there is no kernel
        return load(directory, attention="paged")
    return load(directory, deterministic=mode == "deterministic", attention="torch")


def opens() -> list[Any]:
    return [
        make_open(1, LONG, sampling=SAMPLING),
        make_open(2, SHORT, sampling=SAMPLING),
        make_open(3, FOREIGN, sampling=SAMPLING),
    ]


def before() -> Step:
    """The step before: sequence 2 gets its first token, sequence 1 a part of its prompt, in scattered slots."""
    return make_step(1, (1, 0, CUT, 0), (2, 0, len(SHORT), 100), sample=[0, 1])


def mixed(step: int = 2) -> Step:
    """The step that is interrupted: a chunk with a past, a decode row, and a second chunk."""
    return make_step(step, (1, CUT, len(LONG), 200), (2, len(SHORT), len(SHORT) + 1, 300))


def foreign(step: int) -> Step:
    return make_step(step, (3, 0, len(FOREIGN), 400))


def after(step: int) -> Step:
    """The step that follows for both."""
    one, two = len(LONG), len(SHORT) + 1
    return make_step(step, (1, one, one + 1, 500), (2, two, two + 1, 600))


def undisturbed(loaded: LoadedModel) -> Tokens:
    found, runner = Tokens(), poisoned_runner(loaded)
    for message in (*opens(), before(), mixed(), foreign(3), after(4)):
        found.add(runner.receive(message))
    found.add(drain(runner))
    return found


def safepoints(loaded: LoadedModel) -> tuple[int, int]:
    """Safepoints of the mixed step, and the tokens times layers that it computes."""
    runner = poisoned_runner(loaded)
    run_to(runner, 0, *opens(), before())
    drain(runner)
    count, computed = Pauses(), runner.steps.count.finished
    runner.receive(mixed())
    while runner.busy:
        runner.work(count)
    return count.passed, runner.steps.count.finished - computed


def at_safepoint(loaded: LoadedModel, at: int, limits: RunnerLimits = LIMITS) -> tuple[EngineRunner, Tokens]:
    """A runner in the mixed step, where it has passed the `at`-th safepoint."""
    runner, found = poisoned_runner(loaded, limits), Tokens()
    for message in (*opens(), before()):
        runner.receive(message)
    found.add(drain(runner))
    found.add(run_to(runner, at, mixed()))
    return runner, found


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


# -- parts of the layers -------------------------------------------------------------------------------------------


def part(step: int, first: int, stop: int, *rows: tuple[int, int, int, int], **overrides: Any) -> Step:
    rooms = {"hidden_in": 7 + first if first else 0, "hidden_out": 7 + stop if stop < LAYERS else 0}
    return make_step(step, *rows, layer_start=first, layer_stop=stop, **{**rooms, **overrides})


CHUNK = (1, CUT, len(LONG), 200)
DECODE = (2, len(SHORT), len(SHORT) + 1, 300)


@pytest.mark.parametrize("at", [0, 4, 9])
def test_a_step_in_parts_of_the_layers_is_as_good_as_a_whole_one(loaded: LoadedModel, mode: str, at: int) -> None:
    """A part may be suspended, and the next one may take the rows in another order."""
    expected, runner, found = undisturbed(loaded), poisoned_runner(loaded), Tokens()
    run_to(runner, 0, *opens(), before())
    found.add(drain(runner))
    events = run_to(runner, at, part(2, 0, 2, CHUNK, DECODE, sample=[0, 0]))
    if at:
        runner.receive(interrupt())
        runner.receive(resume(8, 2))
        events += runner.work(lambda: False)
        runner.receive(resume(8, 2))
        runner.receive(resume(9, 1))
    runner.receive(part(3, 2, 3, DECODE, CHUNK))
    runner.receive(foreign(4))
    runner.receive(after(5))
    found.add([*events, *drain(runner)])
    assert found.tokens == expected.tokens
    if mode == "deterministic":
        assert found.logprobs == expected.logprobs
    assert runner.steps.rooms.rows(9) == []
    assert runner.steps.count.finished == BEFORE + LAYERS * (len(LONG) - CUT + 1) + SLACK


def test_kv_is_valid_layer_by_layer(loaded: LoadedModel) -> None:
    runner = poisoned_runner(loaded)
    run_to(runner, 0, *opens(), part(2, 0, 2, (3, 0, 3, 400), sample=[0]))
    drain(runner)
    runner.receive(make_step(3, (3, 3, 5, 403)))
    (refused,) = drain(runner)
    assert "the KV before it ends at 0" in refused.detail
    runner.receive(part(4, 0, 1, (3, 3, 5, 403), sample=[0]))
    (done,) = drain(runner)
    assert done.tokens_computed == 2


@pytest.mark.parametrize(
    ("step", "detail"),
    [
        (part(5, 0, 4, CHUNK), "layers 0 to 4 of a model of 3"),
        (part(5, 2, 2, CHUNK), "layers 2 to 2 of a model of 3"),
        (part(5, 1, 3, CHUNK, hidden_in=0), "it starts at layer 1 with hidden states from room 0"),
        (part(5, 0, 2, CHUNK, hidden_out=0), "it stops at layer 2 with hidden states to room 0"),
        (part(5, 2, 3, CHUNK), "room 9 has nothing of tokens 24 to 60 of sequence 1"),
        (make_step(5, CHUNK, layout=3), "composed for layout 3, layout 0 is in force"),
        (make_step(5, CHUNK, span_row=make_step(0, CHUNK).extent_row), "spans that lie elsewhere"),
    ],
)
def test_a_part_that_cannot_be_run_is_refused(loaded: LoadedModel, step: Step, detail: str) -> None:
    runner = poisoned_runner(loaded)
    run_to(runner, 0, *opens(), before())
    drain(runner)
    events = runner.receive(step) + drain(runner)
    assert (events[0].what, events[0].step, detail in events[0].detail) == ("Step", 5, True), events[0].detail


def test_rooms_are_bounded(loaded: LoadedModel) -> None:
    record_bytes = 64 + 4 * 96 * 4
    runner = poisoned_runner(loaded, rooms=TransitRooms(9, record_bytes + 8))
    run_to(runner, 0, *opens(), part(2, 0, 2, (3, 0, 5, 400), sample=[0]))
    (refused,) = drain(runner)
    assert (refused.step, "in a transit room of" in refused.detail) == (2, True)
    runner.receive(part(3, 0, 2, (3, 0, 4, 400), sample=[0]))
    drain(runner)
    assert runner.steps.rooms.rows(9) == [(3, range(4))]
    runner.receive(Close(3))
    assert runner.steps.rooms.rows(9) == []


def test_a_sequence_that_was_closed_while_it_ran_leaves_nothing_in_a_room(loaded: LoadedModel) -> None:
    runner = poisoned_runner(loaded)
    run_to(runner, 2, *opens(), part(2, 0, 2, (3, 0, 5, 400), sample=[0]))
    runner.receive(Close(3))
    drain(runner)
    assert runner.steps.rooms.rows(9) == []
