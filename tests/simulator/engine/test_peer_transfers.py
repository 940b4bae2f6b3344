"""KV between two modelled engines: written by the sender, verified by the receiver; peers that are gone or changed."""

from dataclasses import replace
from typing import Any

import pytest

from dunlin.cost.links import EngineLinks
from dunlin.effects import Address, Message
from dunlin.messages.engine import (
    CancelTransfer,
    ClosePeerRoom,
    Forget,
    Meet,
    Met,
    OpenPeerRoom,
    Step,
    StepDone,
    Transfer,
    TransferDone,
    Unsupported,
)
from dunlin.messages.types import Payload, Region, TransferKind, TransferStatus, i8, i32, i64
from simulator.cluster.engine_supervisor import SimulatedEngineSupervisor
from simulator.cluster.world import World
from simulator.engine.errors import ContractBroken
from simulator.engine.kv_audit import TORN
from simulator.engine.model import engine_settings
from simulator.engine.peer_network import PeerNetwork
from simulator.engine.token_model import continuation
from simulator.links.ports import make_fabric
from tests.simulator.engine.engine_bench import open_of, step_of

NAMES = ("a", "b")
OK, CORRUPT, FAILED = TransferStatus.OK, TransferStatus.CORRUPT, TransferStatus.FAILED


class Pair:
    """Two engines of two layers on one node, whose link carries 6,400 bytes (100 tokens) per second."""

    def __init__(self) -> None:
        self.world = World(0.0)
        network = PeerNetwork(lambda engine, due: self.world.post(engine, engine, due, 0.0))
        fabric = make_fabric(self.world.call_at)
        self.network = network
        self.heard: list[tuple[float, str, Any]] = []
        self.supervisors: dict[str, SimulatedEngineSupervisor] = {}
        settings = engine_settings(
            slots=1024, step_s=0.08, restart_s=0.5, links=EngineLinks(nvlink=6400.0, look=6400.0)
        )
        for name in NAMES:
            self.world.add(Address("instance", name, 1), _Recorder(self, name))
            self.supervisors[name] = SimulatedEngineSupervisor(
                self.world, Address("instance", name, 1), settings, network=network, node="n", fabric=fabric
            )
        self.world.run_to(1.0)
        self.heard.clear()

    def meet(self, name: str) -> Meet:
        """The order to meet an engine as it is now."""
        address = Address("engine", name)
        return Meet(address, self.network.ends[address].agent)

    def tell(self, name: str, *messages: Message) -> None:
        for message in messages:
            self.world.post(Address("instance", name, 1), Address("engine", name), message, 0.0)

    def run(self, until_s: float = 60.0) -> None:
        self.world.run_to(until_s)

    def of(self, kind: type[Any], name: str = "") -> list[Any]:
        return [message for _, who, message in self.heard if isinstance(message, kind) and name in ("", who)]


class _Recorder:
    def __init__(self, pair: Pair, name: str) -> None:
        self._pair = pair
        self._name = name

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Any]:
        self._pair.heard.append((round(now_s - 1.0, 6), self._name, message))
        return []


def sent(ticket: int = 5, **fields: Any) -> Transfer:
    """Sequence 1's first ten tokens, in the slots from 100 on, into the slots from 200 on of the other engine."""
    values: dict[str, Any] = {
        "peer": Address("engine", "b"),
        "peer_extent_start": i64([200]),
        "peer_extent_length": i64([10]),
        **fields,
    }
    return Transfer(
        ticket, TransferKind.SLAB_TO_PEER, 1, Region(0, 2, 0, 10), i64([100]), i64([10]), chain=b"text", **values
    )


def looked_at(checksum: int, ticket: int = 6, **fields: Any) -> Transfer:
    values: dict[str, Any] = {"sequence": 2, "region": Region(0, 2, 0, 10), "chain": b"text", **fields}
    slots = {"extent_start": i64([200]), "extent_length": i64([10])}
    return Transfer(ticket, TransferKind.PEER_TO_SLAB, checksum=checksum, **{**slots, **values})


def ready() -> Pair:
    """Engine `a` has computed sequence 1 and met `b`; sequence 2 of the same text is open there."""
    pair = Pair()
    pair.tell("a", open_of(1), step_of(1, (1, 0, 10)), pair.meet("b"))
    pair.tell("b", open_of(2, prompt_tokens=10, tokens=i32([*range(10), *continuation(range(10), 1, seed=1)])))
    pair.run(1.1)
    pair.heard.clear()
    return pair


def moved(pair: Pair, **fields: Any) -> TransferDone:
    pair.tell("a", sent(**fields))
    pair.run(1.5)
    (done,) = pair.of(TransferDone, "a")
    assert isinstance(done, TransferDone)
    return done


def go_on() -> Step:
    return replace(step_of(2, (2, 10, 11)), after=i64([6]), extent_start=i64([210]))


def test_kv_that_came_from_a_peer_is_verified_and_read() -> None:
    pair = ready()
    done = moved(pair)
    assert (done.status, done.moved_bytes, round(done.seconds, 6)) == (OK, 640, 0.1)
    pair.tell("b", looked_at(done.checksum), go_on())
    pair.run()
    (theirs,), (step,) = pair.of(TransferDone, "b"), pair.of(StepDone, "b")
    assert (theirs.status, theirs.checksum, list(step.sequence)) == (OK, done.checksum, [2])


@pytest.mark.parametrize("fields", [{"chain": b"other"}, {"region": Region(0, 1, 0, 10)}, {"extent_start": i64([300])}])
def test_what_is_not_what_was_sent_is_corrupt_and_stops_the_rows_that_wait(fields: dict[str, Any]) -> None:
    pair = ready()
    done = moved(pair)
    pair.tell("b", looked_at(done.checksum, **fields), go_on())
    pair.run()
    (theirs,), (step,) = pair.of(TransferDone, "b"), pair.of(StepDone, "b")
    assert (theirs.status, list(step.dropped)) == (CORRUPT, [2])


def test_a_room_is_written_while_it_is_open_whatever_the_engine_does() -> None:
    pair = ready()
    assert moved(pair, peer_handle=3).detail == "the room 3 is closed"
    pair = ready()
    pair.supervisors["b"].engine.is_stuck = True
    pair.tell("b", OpenPeerRoom(3, i64([200]), i64([10])))
    assert moved(pair, peer_handle=3).status is OK
    pair = ready()
    pair.tell("b", OpenPeerRoom(3, i64([200]), i64([10])))
    pair.tell("a", sent(peer_handle=3))
    pair.run(1.15)
    pair.tell("b", ClosePeerRoom(3))
    pair.run(1.5)
    (done,) = pair.of(TransferDone, "a")
    assert (done.status, done.detail) == (FAILED, "the room 3 is closed")


def test_a_transfer_into_an_engine_that_crashed_meanwhile_fails() -> None:
    pair = ready()
    pair.tell("a", sent())
    pair.run(1.15)
    pair.supervisors["b"].crash()
    pair.run(1.3)
    assert [done.status for done in pair.of(TransferDone, "a")] == [TransferStatus.FAILED]
    pair.run(3.0)
    pair.tell("a", pair.meet("b"), sent(8))
    pair.run()
    assert [done.status for done in pair.of(TransferDone, "a")] == [TransferStatus.FAILED, OK]


def test_a_peer_of_another_layout_is_not_written_into() -> None:
    pair = ready()
    assert moved(pair, peer_layout=3).detail == "layout 0 is in force at the peer"


def test_a_forgotten_peer_s_transfers_fail_at_once_and_a_cancelled_one_ends() -> None:
    pair = ready()
    pair.tell("a", sent(5), sent(6))
    pair.run(1.12)
    pair.tell("a", CancelTransfer(6), Forget(Address("engine", "b")))
    pair.run()
    ended = {done.ticket: done.status for done in pair.of(TransferDone, "a")}
    assert ended == {6: TransferStatus.CANCELLED, 5: TransferStatus.FAILED}


def test_only_an_engine_that_was_met_is_written_into() -> None:
    pair = Pair()
    pair.tell("a", sent(5), sent(6, payload=Payload.WEIGHTS), Meet(Address("engine", "nobody")))
    pair.run()
    assert [refused.ticket for refused in pair.of(Unsupported)] == [5, 6]
    assert [met.detail for met in pair.of(Met)] == ["engine/nobody@0 cannot be reached"]


def test_an_engine_that_forgets_a_peer_shuts_all_out_until_they_meet_it_anew() -> None:
    pair = ready()
    pair.tell("a", sent())
    pair.run(1.12)
    pair.tell("b", Forget(Address("engine", "a")))
    pair.run(1.5)
    (told,) = pair.of(Met, "b")
    assert [done.status for done in pair.of(TransferDone, "a")] == [TransferStatus.FAILED]
    pair.tell("a", Meet(Address("engine", "b"), told.agent), sent(8))
    pair.run()
    assert [done.status for done in pair.of(TransferDone, "a")] == [TransferStatus.FAILED, OK]


def test_an_engine_is_not_met_as_it_was_before() -> None:
    pair = ready()
    before = pair.meet("b")
    pair.supervisors["b"].crash()
    pair.run(3.0)
    pair.tell("a", before, pair.meet("b"))
    pair.run(3.1)
    assert [met.detail for met in pair.of(Met, "a")] == ["engine/b@0 cannot be reached", ""]


@pytest.mark.parametrize("end", ["cancel", "crash"])
def test_a_copy_that_does_not_end_leaves_the_peers_slots_torn(end: str) -> None:
    pair = ready()
    pair.tell("a", sent())
    pair.run(1.12)
    if end == "crash":
        pair.supervisors["a"].crash()
    else:
        pair.tell("a", CancelTransfer(5))
    pair.run(2.0)
    audit = pair.supervisors["b"].audit
    assert audit is not None
    assert audit.slab.read(list(range(199, 211))) == [None, *[TORN] * 10, None]


# -- hidden states and tokens between the stages of a pipeline ------------------------------------------------------


def room_sent(ticket: int, step: int, room: int, peer: str, peer_room: int) -> Transfer:
    values: dict[str, Any] = {"payload": Payload.ACTIVATION, "room": room, "peer_handle": peer_room, "step": step}
    return Transfer(
        ticket, TransferKind.SLAB_TO_PEER, 0, Region(0, 1, 0, 1), i64(), i64(), peer=Address("engine", peer), **values
    )


def room_looked_into(sent: Transfer, done: TransferDone) -> Transfer:
    values: dict[str, Any] = {"length_bytes": done.moved_bytes, "checksum": done.checksum, "step": 0}
    return replace(sent, kind=TransferKind.PEER_TO_SLAB, peer=None, room=sent.peer_handle, peer_handle=0, **values)


def stages() -> Pair:
    """Two engines that have met, with sequence 1 open in both."""
    pair = Pair()
    for name, other in (("a", "b"), ("b", "a")):
        pair.tell(name, open_of(1), pair.meet(other))
    pair.run(1.1)
    pair.heard.clear()
    return pair


def test_two_stages_give_the_tokens_of_one_engine() -> None:
    """The transfer behind a step waits until the step has left something."""
    pair = stages()
    found: list[list[int]] = []
    back: list[Transfer] = []
    for number, row in enumerate([(1, 0, 10), (1, 10, 11), (1, 11, 12)], start=1):
        there, behind = room_sent(2, number, 1, "b", 2), room_sent(1, number, 3, "a", 4)
        values: dict[str, Any] = {"layer_stop": 1, "hidden_in": 4, "hidden_out": 1, "sample": i8([0])}
        pair.tell("a", *back, replace(step_of(number, row), after=i64([1] if back else []), **values), there)
        pair.run(pair.world.now_s + 5.0)
        (sent,) = [done for done in pair.of(TransferDone, "a") if done.ticket == 2]
        upper = replace(step_of(number, row), layer_start=1, hidden_in=2, hidden_out=3, after=i64([2]))
        pair.tell("b", room_looked_into(there, sent), upper, behind)
        pair.run(pair.world.now_s + 5.0)
        found += [list(done.token) for done in pair.of(StepDone, "b")]
        (told,) = [done for done in pair.of(TransferDone, "b") if done.ticket == 1]
        assert {done.status for done in pair.of(TransferDone)} == {OK}
        back = [room_looked_into(behind, told)]
        pair.heard.clear()
    assert found == [[token] for token in continuation(range(10), 3, seed=1)]


def test_a_room_with_other_content_may_not_be_read() -> None:
    pair = stages()
    there = room_sent(2, 1, 1, "b", 2)
    pair.tell("a", replace(step_of(1, (1, 0, 10)), layer_stop=1, hidden_out=1, sample=i8([0])), there)
    pair.run(5.0)
    (sent,) = pair.of(TransferDone, "a")
    pair.tell("b", replace(room_looked_into(there, sent), checksum=sent.checksum + 1))
    pair.run(10.0)
    (looked,) = pair.of(TransferDone, "b")
    assert looked.status is CORRUPT
    pair.tell("b", replace(step_of(1, (1, 0, 10)), layer_start=1, hidden_in=2))
    with pytest.raises(ContractBroken, match="room 2 has no hidden states"):
        pair.run(15.0)


@pytest.mark.parametrize(
    ("tokens", "at_s"),
    [
        (10, 0.13),  # the first layer takes 0.05 s beside the step of 0.08, the last 0.05 after it
        (20, 0.2),  # the first layer is still under way when the step ends
    ],
)
def test_a_push_copies_the_last_layer_once_the_step_has_ended(tokens: int, at_s: float) -> None:
    pair = Pair()
    pair.tell("a", pair.meet("b"), open_of(1, prompt_tokens=tokens, tokens=i32(range(tokens))))
    pair.run(1.1)
    pair.heard.clear()
    push = replace(sent(step=1), region=Region(0, 2, 0, tokens), extent_length=i64([tokens]))
    pair.tell("a", step_of(1, (1, 0, tokens)), replace(push, peer_extent_length=i64([tokens])))
    pair.run(3.0)
    ((done_s, _, done),) = [each for each in pair.heard if isinstance(each[2], TransferDone)]
    assert (done.status, done.moved_bytes, round(done_s - 0.1, 6)) == (OK, 64 * tokens, at_s)
