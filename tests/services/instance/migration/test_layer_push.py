"""KV that a prefill instance writes into a decode instance's slots layer by layer, while a step computes it."""

from typing import Any

from dunlin.effects import Address, Joined, Send
from dunlin.messages.dispatch import Ready
from dunlin.messages.engine import CancelTransfer, Interrupt, Interrupted, Met, StepDone, Transfer, TransferDone
from dunlin.messages.group import Filled, PeerRoom, ReservationLost, Reserve, Reserved, Written
from dunlin.messages.plan import Handoff, HandoffTarget
from dunlin.messages.types import GroupRole, Region, TransferStatus, Verdict, f32, i8, i32, i64
from services.instance.migration.migrate_in import MigrateInTimeout
from services.instance.migration.outgoing import MigrateOutTimeout, OutgoingMigration
from tests.services.instance.bench import ENGINE, MANAGER, D, done, make_order, make_place, of, only, ready_core

PEER = Address("instance", "peer", 9)
PEER_ENGINE = Address("engine", "peer")
AGENT: dict[str, Any] = {"agent": b"node 1", "layout": 3}
PROMPT = 40


class Prefill:
    """A prefill instance that computes a prompt of 40 tokens in step 1, which is to be handed off to the peer."""

    def __init__(self, **config: Any) -> None:
        self.direct = ready_core(AGENT, kv_handoff__policy="most_room", **config)
        self.direct.give(MANAGER, make_order(plan_version=2, part=GroupRole.PREFILL))
        self.direct.give(PEER, Joined())
        self.direct.give(MANAGER, Handoff(1, 1, (HandoffTarget(PEER, 1000, 1000),)))
        self.reserve = only(Reserve, self.direct.give(D, make_place(tokens=PROMPT, max_tokens=20)))
        (self.sequence,) = self.direct.core.sequences.by_arrival()

    @property
    def migration(self) -> OutgoingMigration:
        (migration,) = self.direct.core.migration.migrate_out._migrations.values()
        return migration

    def reserved(self) -> list[Send]:
        room = PeerRoom(PEER_ENGINE, b"peer's", 7, i64([100]), i64([PROMPT + 32]))
        self.direct.give(PEER, Reserved(self.reserve.sequence, 6, None, room))
        return self.direct.give(ENGINE, Met(PEER_ENGINE))

    def first_token(self) -> list[Send]:
        return self.direct.give(ENGINE, done(1, (self.sequence.number, 5)))

    def copied(self, copy: Transfer, status: TransferStatus = TransferStatus.OK) -> list[Send]:
        return self.direct.give(ENGINE, TransferDone(copy.ticket, status, 77))

    def left(self) -> list[Send]:
        """The row leaves step 1, which then ends without it."""
        number = self.sequence.number
        step = StepDone(1, i64([]), i32([]), f32([]), i8([]), left=i64([number]))
        (ticket,) = self.direct.core.steps._interrupts
        gone = Interrupted(i64([number]), ticket, i64([1]), i32([1]), i32([0]), i8([0]))
        return [*self.direct.give(ENGINE, gone), *self.direct.give(ENGINE, step)]

    def interrupt(self) -> None:
        (effect,) = self.direct.core.steps.interrupt([self.sequence], Verdict.DISCARD)
        assert isinstance(effect, Send)
        assert isinstance(effect.message, Interrupt)


def test_room_is_asked_for_with_the_step_that_computes_the_prompt() -> None:
    prefill = Prefill()
    assert prefill.direct.core.steps.is_outstanding(1)
    assert prefill.reserve.tokens == PROMPT + 32


def test_the_whole_prompt_is_pushed_behind_the_step_that_computes_it() -> None:
    prefill = Prefill()
    push = only(Transfer, prefill.reserved())
    assert (push.step, push.region, push.peer_handle) == (1, Region(0, 2, 0, PROMPT), 6)
    assert prefill.sequence.valid == 0


def test_without_layer_by_layer_it_is_copied_when_the_prompt_is_done() -> None:
    prefill = Prefill(kv_handoff__layer_by_layer=False)
    assert of(Transfer, prefill.reserved()) == []
    copy = only(Transfer, prefill.first_token())
    assert (copy.step, copy.region) == (0, Region(0, 2, 0, PROMPT))


def test_the_dispatcher_hears_of_the_target_once_the_push_was_checked_there() -> None:
    prefill = Prefill()
    push = only(Transfer, prefill.reserved())
    assert of(Transfer, prefill.first_token()) == [], "one copy at a time"
    written = only(Written, prefill.copied(push))
    assert (written.region, written.checksum, written.chain) == (push.region, 77, push.chain)
    ready = only(Ready, prefill.direct.give(PEER, Filled(6, PROMPT)))
    assert (ready.handle, ready.tokens) == (6, PROMPT)


def test_a_push_that_is_answered_before_its_step_waits_for_it() -> None:
    prefill = Prefill()
    push = only(Transfer, prefill.reserved())
    assert only(Written, prefill.copied(push)).region == push.region
    assert of(Ready, prefill.direct.give(PEER, Filled(6, PROMPT))) == []
    assert only(Ready, prefill.first_token()).tokens == PROMPT


def test_a_row_that_left_its_step_takes_its_push_with_it() -> None:
    """The engine may have heard of the push after the row left: what it wrote then is no KV, whatever it answers."""
    prefill = Prefill()
    push = only(Transfer, prefill.reserved())
    prefill.interrupt()
    sends = prefill.left()
    assert only(CancelTransfer, sends).ticket == push.ticket
    assert prefill.sequence.valid == 0
    sends += prefill.copied(push)
    assert of(Written, sends) == []
    assert prefill.migration.offered == 0


def test_a_push_that_failed_is_made_good_by_a_copy() -> None:
    prefill = Prefill()
    push = only(Transfer, prefill.reserved())
    assert of(Transfer, prefill.copied(push, TransferStatus.FAILED)) == [], "not twice behind one step"
    copy = only(Transfer, prefill.first_token())
    assert (copy.step, copy.region) == (0, push.region)


def test_nothing_is_pushed_behind_a_row_that_may_be_leaving() -> None:
    prefill = Prefill()
    prefill.interrupt()
    assert of(Transfer, prefill.reserved()) == []


def test_a_prompt_may_take_longer_than_a_stage_and_its_room_is_kept() -> None:
    prefill = Prefill()
    push = only(Transfer, prefill.reserved())
    for _ in range(3):
        due = MigrateOutTimeout(prefill.migration.number, prefill.migration.counter)
        again = only(Reserve, prefill.direct.give(prefill.direct.core.address, due))
        assert again == prefill.reserve
        assert prefill.direct.give(PEER, Reserved(again.sequence, 6)) == []
    prefill.first_token()
    prefill.copied(push)
    assert only(Ready, prefill.direct.give(PEER, Filled(6, PROMPT))).tokens == PROMPT


def test_a_room_that_is_asked_for_again_is_kept_for_longer() -> None:
    target = ready_core(AGENT)
    target.give(PEER, Joined())
    names = (None, f"{D}/1", D, 1, 1)
    asked = Reserve(1, PROMPT, 0, 2, 1, 1, *names, longest=60, weights_digest="fake", kv_dtype="float32")
    first, again = only(Reserved, target.give(PEER, asked)), only(Reserved, target.give(PEER, asked))
    assert first == again
    assert target.give(target.core.address, MigrateInTimeout(1, 1)) == [], "a newer timer runs"
    assert only(ReservationLost, target.give(target.core.address, MigrateInTimeout(1, 2))).handle == 1
    assert target.give(PEER, asked) == [], "it was told so"
