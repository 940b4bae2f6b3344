"""Steps with peers that are suspended whole, at whatever piece each member stands, and go on with the same result."""

import random
from pathlib import Path
from typing import Any

import pytest

from dunlin.messages.engine import Close, Discard, Interrupt, Interrupted, Resume, StepDone, Unsupported
from dunlin.messages.types import GroupKind, Verdict, i64
from tests.engine.build import make_checkpoint
from tests.engine.commands import make_open, make_step
from tests.engine.execution.members import (
    SAMPLING,
    Member,
    group,
    keep,
    meet_all,
    no_rows,
    peer_index,
    run_all,
    serve,
    span_columns,
    whole_text,
)
from tests.engine.execution.test_split_keys import agree, samples

LAYERS = 2
TEXT = [(7 * at * at + 3 * at + 11) % 500 for at in range(400)]
FOREIGN = [(5 * at * at + 2) % 500 for at in range(90)]
LONG, SHORT, LOCAL = 1, 2, 3
LAST = len(TEXT) - 1


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), seed=2, layers=LAYERS)


def suspend(step: int, ticket: int = 1) -> Interrupt:
    return Interrupt(Verdict.SUSPEND, ticket=ticket, step=step)


def tell_ring(members: list[Member], number: int, sequence: int, text: list[int], slot: int) -> None:
    """A prompt goes round all members; each keeps a stretch of it in slots from `slot` on."""
    count, length = len(members), len(text)
    for each in members:
        me = each.number
        bounds = [length * at // count for at in range(count + 1)]
        stripes = [(other, length, count, peer_index(each, other)) for other in range(count) if other != me]
        columns = {**span_columns([(0, one) for one in stripes]), **group(each, members, GroupKind.RING, number)}
        kept = keep(0, LAYERS, bounds[me], bounds[me + 1], slot)
        row = (sequence, me, length, slot + 1000)
        is_last = (length - 1) % count == me
        each.tell(make_open(sequence, text, sampling=SAMPLING, max_tokens=9))
        each.tell(make_step(number, row, sample=[is_last], stride=i64([count]), keep=kept, **columns))


def tell_decode(members: list[Member], number: int, sequence: int, at: int, text: list[int], slot: int) -> None:
    """The token at `at` of a text that went round: the member that computed the last one is its master."""
    count, length = len(members), len(text)
    master = members[(length - 1) % count]
    bounds = [length * each // count for each in range(count + 1)]
    held = [(o, bounds[o], bounds[o + 1]) for o in range(count) if o != master.number]
    spans = span_columns([(0, (start, stop, 1, peer_index(master, o))) for o, start, stop in held])
    master.tell(
        make_step(number, (sequence, at, at + 1, slot + 900 + at - length), **spans,
                  **group(master, members, GroupKind.MASTERS, number))
    )  # fmt: skip
    for o, start, stop in held:
        part = serve(0, [(sequence, at, at + 1, [(start, stop, slot)])])
        two = [members[o], master]
        members[o].tell(no_rows(number, serve=part, **group(members[o], two, GroupKind.MASTERS, number)))


def advance(members: list[Member], draw: random.Random, most: int) -> None:
    """Some pieces at members in turn."""
    for _ in range(draw.randrange(most)):
        each = draw.choice(members)
        if each.runner.busy:
            each.events += each.runner.work(lambda: True)


def suspend_all(members: list[Member], number: int) -> list[Member]:
    """Returns the members where the step was parked; elsewhere it had ended."""
    parked = []
    for each in members:
        each.tell(suspend(number))
        each.events += each.runner.work(lambda: True)
        (left,) = (event for event in each.events if isinstance(event, Interrupted))
        if left.parked_step:
            assert left.parked_step == number
            assert set(left.parked) <= {1}
            parked.append(each)
    return parked


def answers_of(each: Member, step: int) -> StepDone:
    (found,) = (event for event in each.events if isinstance(event, StepDone) and event.step == step)
    return found


def result_of(members: list[Member], steps: list[int]) -> list[tuple[int, float]]:
    """What was sampled in one of these steps."""
    found = [event for each in members for event in each.events if isinstance(event, StepDone) and event.step in steps]
    (done,) = (event for event in found if event.token)
    return samples(done)


@pytest.mark.parametrize("mode", ["deterministic", "torch"])
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_a_suspended_group_goes_on_with_the_same_result(directory: Path, mode: str, count: int, seed: int) -> None:
    """Suspended twice, each member wherever it stood, some of them before they began; in between another ring over the
    same rooms is computed whole, and local rows.
    """
    draw = random.Random(10 * seed + count)
    members = meet_all([Member(number, directory, mode, room_bytes=1 << 13) for number in range(count)])
    expected = whole_text(members[0], TEXT, 2, 0)
    foreign = whole_text(members[0], FOREIGN, 1, 0)
    for each in members:
        each.poison(range(each.loaded.slots))
        each.answers()
    tell_ring(members, 5, LONG, TEXT, 0)
    waiting, numbers = list(members), [5]
    for turn in range(2):
        advance(waiting, draw, 30)
        waiting = suspend_all(waiting, numbers[-1])
        for each in members:
            each.answers() if each in waiting else None
        base = 2000 * (turn + 1)
        tell_ring(members, 20 + turn, SHORT + 10 * turn, FOREIGN, base)
        for each in members:
            each.tell(
                make_open(LOCAL + 10 * turn, TEXT[:9]), make_step(30 + turn, (LOCAL + 10 * turn, 0, 9, base + 1500))
            )
        run_all(members)
        assert agree(result_of(members, [20 + turn]), foreign, mode)
        numbers.append(40 + turn)
        for each in waiting:
            each.answers()
            each.tell(Resume(numbers[-1], parked_step=numbers[-2]))
    run_all(members)
    found = result_of(members, numbers)
    for each in members:
        each.answers()
    tell_decode(members, 60, LONG, len(TEXT), TEXT, 0)
    run_all(members)
    assert agree([*found, *result_of(members, [60])], expected, mode)


def parked_pair(directory: Path) -> list[Member]:
    """Two members whose ring, step 5, is parked in its first layer, and queued, and that have answered so."""
    members = meet_all([Member(number, directory, "torch") for number in range(2)])
    tell_ring(members, 5, LONG, TEXT, 0)
    members[0].events += members[0].runner.work(lambda: True)
    assert suspend_all(members, 5) == members
    for each in members:
        assert [type(event) for event in each.events] == [Interrupted, StepDone]
        assert (list(each.events[1].left), each.events[1].cut_short) == ([LONG], False)
        each.answers()
    return members


def test_a_discarded_group_step_ends_those_that_go_on(directory: Path) -> None:
    members = parked_pair(directory)
    members[0].tell(Discard(parked_step=5))
    members[1].tell(Resume(6, parked_step=5))
    run_all(members)
    (done,) = members[1].answers()
    assert (list(done.left), done.cut_short) == ([LONG], True)
    members[0].tell(Resume(6, parked_step=5))
    (refused,) = members[0].answers()
    assert isinstance(refused, Unsupported)


def test_a_step_cannot_name_a_sequence_of_a_parked_one(directory: Path) -> None:
    member = parked_pair(directory)[0]
    member.tell(make_step(7, (LONG, 0, 9, 3000), sample=[0]))
    member.events += member.runner.work(lambda: True)
    assert "parked" in member.answers()[0].detail


@pytest.mark.parametrize("who", [0, 1])
def test_a_closed_sequence_leaves_its_parked_step(directory: Path, who: int) -> None:
    """At the member that had begun, and at the one that had not."""
    members = parked_pair(directory)
    members[who].tell(Close(LONG))
    for each in members:
        each.tell(Resume(6, parked_step=5))
    run_all(members)
    dropped, left = members[who].answers()[0], members[1 - who].answers()[0]
    assert (list(dropped.dropped), list(left.left)) == ([LONG], [LONG])


def test_a_resumed_step_may_be_interrupted_before_it_begins(directory: Path) -> None:
    members = parked_pair(directory)
    for each in members:
        each.tell(Resume(6, parked_step=5), suspend(6))
        left, done = each.answers()
        assert (left.parked_step, list(done.left)) == (6, [LONG])
        each.tell(Resume(7, parked_step=6), Interrupt(Verdict.DISCARD, ticket=2, step=7))
        left, done = each.answers()
        assert (left.parked_step, list(left.sequence), list(done.left), done.cut_short) == (0, [LONG], [LONG], True)
        assert not each.runner.steps.has_parked


def test_named_rows_of_a_step_with_peers_are_discarded(directory: Path) -> None:
    members: Any = meet_all([Member(number, directory, "torch") for number in range(2)])
    tell_ring(members, 5, LONG, TEXT, 0)
    members[0].events += members[0].runner.work(lambda: True)
    members[0].tell(Interrupt(Verdict.SUSPEND, i64([LONG]), ticket=1))
    members[0].events += members[0].runner.work(lambda: True)
    left, done = members[0].answers()
    assert (list(left.parked), left.parked_step, done.cut_short) == ([0], 0, True)
