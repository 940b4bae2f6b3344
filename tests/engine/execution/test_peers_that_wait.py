"""A step that another engine's step waits for, and that does not come: none waits for it in vain."""

from pathlib import Path

import pytest

from dunlin.messages.engine import Close, Forget, StepDone, Unsupported
from dunlin.messages.types import GroupKind, i64
from tests.engine.build import make_checkpoint
from tests.engine.commands import make_open, make_step
from tests.engine.execution.members import Member, group, meet_all, no_rows, run_all, serve, span_columns

TEXT = [(7 * at * at + 3) % 500 for at in range(60)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), layers=2)


def members_with_keys(directory: Path, count: int) -> list[Member]:
    """Member 1 holds the first 40 of 59 tokens of sequence 1, member 0 is its master."""
    members = meet_all([Member(number, directory, "torch") for number in range(count)])
    for each in members[:2]:
        each.tell(make_open(9, TEXT), make_step(1, (9, 0, 59, 0), sample=[0]))
    run_all(members[:2])
    members[0].tell(make_open(1, TEXT, extent_start=i64([-1, 40]), extent_length=i64([40, 19])))
    [each.answers() for each in members]
    return members


def ask(master: Member, others: list[Member]) -> None:
    """The last token of sequence 1."""
    spans = span_columns([(0, (0, 40, 1, 0))])
    master.tell(make_step(2, (1, 59, 60, 59), **spans, **group(master, others, GroupKind.MASTERS, 7)))


def answer(holder: Member, others: list[Member]) -> None:
    part = serve(0, [(1, 59, 60, [(0, 40, 0)])])
    holder.tell(no_rows(2, serve=part, **group(holder, others, GroupKind.MASTERS, 7)))


def test_a_holder_does_not_wait_for_a_step_of_which_no_row_runs(directory: Path) -> None:
    master, holder = both = members_with_keys(directory, 2)
    answer(holder, both)
    holder.events += holder.runner.work(lambda: None)
    assert holder.runner.is_waiting
    master.tell(Close(1))
    ask(master, both)
    run_all(both)
    (dropped,), (served,) = master.answers(), holder.answers()
    assert (list(dropped.dropped), list(served.left), served.tokens_computed) == ([1], [], 0)


def test_a_waiting_step_ends_when_its_peer_has_shut_all_others_out(directory: Path) -> None:
    """The holder has forgotten another engine; the master has nothing to send while it waits."""
    master, holder, other = members = members_with_keys(directory, 3)
    ask(master, [master, holder])
    answer(holder, [master, holder])
    holder.events += holder.runner.work(lambda: True)
    for _ in range(20):
        master.events += master.runner.work(lambda: None)
    assert master.runner.is_waiting
    holder.tell(Forget(other.address))
    master.events += master.runner.work(lambda: None)
    (done,) = master.answers()
    assert isinstance(done, StepDone)
    assert (list(done.left), len(members)) == ([1], 3)


def test_a_refused_step_lets_no_peer_write_for_it(directory: Path) -> None:
    """It names two peers, of which one was forgotten; the other one finds no room open and waits for its core."""
    me, peer, gone = members_with_keys(directory, 3)
    me.tell(make_open(2, TEXT), Forget(gone.address))
    stripes = span_columns([(0, (1, 60, 3, 0)), (0, (2, 60, 3, 1))])
    me.answers()
    me.tell(make_step(3, (2, 0, 60, 100), stride=i64([3]), **stripes, **group(me, [me, peer, gone], GroupKind.RING, 8)))
    me.events += me.runner.work(lambda: None)
    (refused,) = me.answers()
    assert isinstance(refused, Unsupported)
    opened = me.rooms.view(peer.number + 1, 64).view("int64")[0]
    assert opened != 8


def test_a_master_computes_over_its_own_keys_before_it_waits(directory: Path) -> None:
    """As long as there is a piece of its own, it does not ask for a pause."""
    text = [(3 * at) % 500 for at in range(3000)]
    master, holder = both = meet_all([Member(number, directory, "torch") for number in range(2)])
    master.tell(make_open(9, text), make_step(1, (9, 0, 2900, 0), sample=[0]))
    run_all([master])
    master.tell(make_open(1, text, extent_start=i64([-1, 40]), extent_length=i64([40, 2860])))
    spans = span_columns([(0, (0, 40, 1, 0))])
    master.tell(make_step(2, (1, 2900, 3000, 2900), sample=[0], **spans, **group(master, both, GroupKind.MASTERS, 7)))
    pieces = 0
    while not master.runner.is_waiting:
        master.runner.work(lambda: True)
        pieces += 1
    assert pieces > 3
    master.runner.work(lambda: None)
    assert master.runner.is_waiting
    assert holder.answers() == []
