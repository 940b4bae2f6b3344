"""Steps of two modelled engines that compute together: they end together, and check what the other has."""

from dataclasses import replace
from typing import Any

import pytest

from dunlin.effects import Address
from dunlin.messages.engine import Close, Forget, Interrupt, Interrupted, Step, StepDone, Unsupported
from dunlin.messages.types import GroupKind, Keep, Serve, Verdict, i8, i32, i64
from simulator.engine.errors import ContractBroken
from simulator.engine.token_model import continuation
from tests.simulator.engine.engine_bench import open_of, step_of
from tests.simulator.engine.test_peer_transfers import Pair

TOKENS = [[token] for token in continuation(range(10), 4, seed=1)]


def group(peer: str, kind: GroupKind = GroupKind.MASTERS, exchange: int = 7) -> dict[str, Any]:
    rooms = {"own_room": i64([1]), "peer_room": i64([1])}
    return {"group": kind, "peers": (Address("engine", peer),), "exchange": exchange, **rooms}


def spans(start: int, stop: int, stride: int = 1) -> dict[str, Any]:
    values = {"span_start": i64([start]), "span_stop": i64([stop]), "span_stride": i64([stride])}
    return {"span_row": i32([0]), "span_holder": i32([0]), **values}


def serving(number: int, start: int, stop: int, held: tuple[int, int, int], **fields: Any) -> Step:
    """No row: the answer for queries `start` to `stop` of sequence 1; held are tokens (first, last) from a slot on."""
    part: dict[str, Any] = {
        "sequence": i64([1]),
        "start": i64([start]),
        "stop": i64([stop]),
        "stride": i64([1]),
        "master": i32([0]),
    }
    own: dict[str, Any] = {
        "span_part": i32([0]),
        "span_start": i64([held[0]]),
        "span_stop": i64([held[1]]),
        "slot": i64([held[2]]),
    }
    empty: dict[str, Any] = {"extent_row": i32(), "extent_start": i64(), "extent_length": i64()}
    return Step(number, i64(), i64(), i64(), i8(), **empty, serve=Serve(**part, **own), **fields)


def split_pair() -> Pair:
    """Engine b has computed sequence 1; of a's sequence 1 the first six tokens lie there, three in slots 106 to 108."""
    pair = Pair()
    pair.tell("a", pair.meet("b"), open_of(9), step_of(1, (9, 0, 10)))
    pair.tell("b", pair.meet("a"), open_of(1), step_of(1, (1, 0, 10)))
    extents: dict[str, Any] = {"extent_start": i64([-1, 906]), "extent_length": i64([6, 3])}
    pair.tell("a", open_of(1, **extents))
    pair.run(2.0)
    pair.heard.clear()
    return pair


def ask(number: int = 2, **fields: Any) -> Step:
    return replace(step_of(number, (1, 9, 10)), **{**spans(0, 6), **group("b"), **fields})


def test_a_master_and_its_holder_end_together() -> None:
    pair = split_pair()
    pair.tell("a", ask())
    pair.run(3.0)
    assert pair.of(StepDone) == []
    pair.tell("b", serving(2, 9, 10, (0, 6, 100), **group("a")))
    pair.run(4.0)
    (done,), (served,) = pair.of(StepDone, "a"), pair.of(StepDone, "b")
    assert (list(done.token), list(served.token), served.tokens_computed) == (TOKENS[0], [], 0)


@pytest.mark.parametrize(
    ("held", "words"),
    [((0, 6, 101), "does not hold tokens"), ((0, 5, 100), "does not hold tokens"), ((1, 7, 101), "does not hold")],
)
def test_a_holder_that_has_something_else_breaks_the_contract(held: tuple[int, int, int], words: str) -> None:
    pair = split_pair()
    pair.tell("a", ask())
    pair.tell("b", serving(2, 9, 10, held, **group("a")))
    with pytest.raises(ContractBroken, match=words):
        pair.run(4.0)


def test_a_row_may_not_read_what_no_span_names() -> None:
    pair = split_pair()
    pair.tell("a", ask(**spans(0, 4)))
    pair.tell("b", serving(2, 9, 10, (0, 4, 100), **group("a")))
    with pytest.raises(ContractBroken, match="no span names them"):
        pair.run(4.0)


def test_a_ring_keeps_what_it_names_and_decodes_over_it() -> None:
    pair = Pair()
    for name, other, own in (("a", "b", 0), ("b", "a", 1)):
        keep = Keep(i32([0]), i32([0]), i32([2]), i64([5 * own]), i64([5 * own + 5]), i64([300]))
        striped = {"stride": i64([2]), "sample": i8([own]), **spans(1 - own, 10, 2)}
        step = replace(step_of(1, (1, own, 10)), **striped, **group(other, GroupKind.RING), keep=keep)
        pair.tell(name, open_of(1), pair.meet(other), step)
    pair.run(2.0)
    found = [list(done.token) for done in pair.of(StepDone, "b")]
    assert [done.tokens_computed for done in pair.of(StepDone)] == [5, 5]
    for number in (2, 3):
        row = {**spans(0, 5), **group("a", exchange=10 + number)}
        pair.tell("b", replace(step_of(number, (1, 8 + number, 9 + number)), **row))
        pair.tell("a", serving(number, 8 + number, 9 + number, (0, 5, 300), **group("b", exchange=10 + number)))
        pair.run(pair.world.now_s + 2.0)
    found += [list(done.token) for done in pair.of(StepDone, "b")[1:]]
    assert found == TOKENS[:3]


def ring_pair(*, closed: bool) -> Pair:
    """Two members of a ring over sequence 1's prompt; a has closed the sequence before it began, or not."""
    pair = Pair()
    for name, other, own in (("a", "b", 0), ("b", "a", 1)):
        keep = Keep(i32([0]), i32([0]), i32([2]), i64([5 * own]), i64([5 * own + 5]), i64([300]))
        striped = {"stride": i64([2]), "sample": i8([own]), **spans(1 - own, 10, 2)}
        local = step_of(1, (1, own, 10), (2, 0, 10))
        step = replace(local, **striped, **group(other, GroupKind.RING), keep=keep)
        step = replace(step, stride=i64([2, 1]), sample=i8([own, 1]))
        pair.tell(name, open_of(1), open_of(2), pair.meet(other))
        if closed and name == "a":
            pair.tell(name, Close(1))
        pair.tell(name, step)
    pair.run(2.0)
    return pair


def test_what_a_ring_keeps_of_a_row_that_did_not_run_at_a_peer_may_not_be_read() -> None:
    """The other row goes on, and both steps end."""
    assert [len(ring_pair(closed=False).of(StepDone, name)) for name in ("a", "b")] == [1, 1]
    pair = ring_pair(closed=True)
    assert [[list(done.dropped) for done in pair.of(StepDone, name)] for name in ("a", "b")] == [[[1]], [[]]]
    row = {**spans(0, 5), **group("a", exchange=12)}
    pair.tell("b", replace(step_of(2, (1, 10, 11)), **row))
    pair.tell("a", serving(2, 10, 11, (0, 5, 300), **group("b", exchange=12)))
    with pytest.raises(ContractBroken):
        pair.run(pair.world.now_s + 2.0)


def test_a_holder_does_not_wait_for_a_step_of_which_no_row_runs() -> None:
    pair = split_pair()
    pair.tell("b", serving(2, 9, 10, (0, 6, 100), **group("a")))
    pair.run(3.0)
    assert pair.of(StepDone) == []
    pair.tell("a", Close(1), ask())
    pair.run(4.0)
    assert [list(done.dropped) for done in pair.of(StepDone, "a")] == [[1]]
    assert len(pair.of(StepDone, "b")) == 1


def test_a_waiting_step_ends_when_its_peer_has_shut_all_others_out() -> None:
    pair = split_pair()
    pair.tell("a", ask())
    pair.run(3.0)
    pair.tell("b", Forget(Address("engine", "c")))
    pair.run(4.0)
    assert [list(done.left) for done in pair.of(StepDone, "a")] == [[1]]


def test_a_row_that_leaves_while_it_waits_is_not_parked_and_the_holder_ends() -> None:
    pair = split_pair()
    pair.tell("a", ask())
    pair.run(3.0)
    pair.tell("a", Interrupt(Verdict.SUSPEND, ticket=1))
    pair.tell("b", serving(2, 9, 10, (0, 6, 100), **group("a")))
    pair.run(5.0)
    (left,), (done,) = pair.of(Interrupted, "a"), pair.of(StepDone, "a")
    assert (list(left.sequence), list(left.parked), list(done.left)) == ([1], [0], [1])
    assert len(pair.of(StepDone, "b")) == 1
    pair.tell("a", ask(3, exchange=8))
    pair.tell("b", serving(3, 9, 10, (0, 6, 100), **group("a", exchange=8)))
    pair.run(8.0)
    assert [list(done.token) for done in pair.of(StepDone, "a")] == [[], TOKENS[0]]


@pytest.mark.parametrize("how", ["holder interrupted", "holder forgotten"])
def test_a_master_without_its_holder_ends_with_its_rows_left(how: str) -> None:
    pair = split_pair()
    pair.tell("a", ask())
    pair.tell("b", serving(2, 9, 10, (0, 6, 100), **group("a", exchange=99)))
    pair.run(3.0)
    if how == "holder forgotten":
        pair.tell("a", Forget(Address("engine", "b")))
    else:
        pair.tell("b", Interrupt(Verdict.DISCARD, ticket=1, up_to_step=2))
        pair.tell("b", serving(3, 9, 10, (0, 6, 100), **group("a")))
        pair.tell("b", Interrupt(Verdict.DISCARD, ticket=2, up_to_step=3))
    pair.run(5.0)
    (done,) = pair.of(StepDone, "a")
    assert (list(done.token), list(done.left)) == ([], [1])


def test_a_step_with_a_peer_that_was_not_met_is_refused() -> None:
    pair = split_pair()
    pair.tell("a", ask(peers=(Address("engine", "c"),)), ask(3, exchange=0))
    pair.run(3.0)
    assert [refused.step for refused in pair.of(Unsupported, "a")] == [2, 3]


def test_an_interrupt_is_answered_when_a_peer_ends_the_step_before_its_safepoint() -> None:
    """Safepoints are 5 ms apart: the holder gives the step up at 10 ms, and the master's, begun 2 ms later, has none
    before 12.
    """
    pair = split_pair()
    began_s = pair.world.now_s
    pair.tell("b", serving(2, 9, 10, (0, 6, 100), **group("a")))
    pair.run(began_s + 0.002)
    pair.tell("a", ask())
    pair.run(began_s + 0.008)
    for name in ("a", "b"):
        pair.tell(name, Interrupt(Verdict.DISCARD, ticket=5))
    pair.run(began_s + 1.0)
    assert [message.ticket for message in pair.of(Interrupted)] == [5, 5]
    assert len(pair.of(StepDone)) == 2
