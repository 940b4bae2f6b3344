"""Random transfers of one engine and between two: KV to the host tier and back, moves, and what a step writes, sent on.

A move copies what is computed while the sequence decodes, has the receiver look at it, and goes on there. Knows no
layer's weights.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.engine.soak.engine_orders import EngineOrders
from benchmarks.engine.soak.sequences import ReferenceText, SoakSequence
from benchmarks.engine.soak.tier import SoakTier
from dunlin.messages.engine import CancelTransfer, ClosePeerRoom, Transfer, TransferDone
from dunlin.messages.types import I64, HostRegion, Region, TransferKind, TransferStatus, i64
from services.instance.kv.residency import Extent, SlotUse

CANCELLED = 0.1
CORRUPTED = 0.1
SAVED_MOST = 12
CHAIN = b"soak"


@dataclass(frozen=True, slots=True)
class SavedRegion:
    """The KV of a text's first `stop` tokens in the tier, with the tokens generated when it was saved."""

    region: HostRegion
    text: ReferenceText
    made: tuple[int, ...]
    stop: int


@dataclass(frozen=True, slots=True)
class Handover:
    """A sequence whose first `stop` tokens lie in the target's slots of `number`, too."""

    source: EngineOrders
    target: EngineOrders
    each: SoakSequence
    number: int
    stop: int


class SoakTransfers:
    """Owns the saved regions, and the rooms that are open to the other engine. `counts` of what was begun."""

    def __init__(self, engines: tuple[EngineOrders, EngineOrders], tier: SoakTier, draw: random.Random) -> None:
        self.counts: Counter[str] = Counter()
        self.rooms: dict[str, int] = dict.fromkeys((one.name for one in engines), 0)
        self.handles = 0
        self._engines = engines
        self._tier = tier
        self._draw = draw
        self._saved: list[SavedRegion] = []
        self._handovers: list[Handover] = []

    @property
    def is_quiet(self) -> bool:
        """Whether no sequence is about to go on elsewhere."""
        return not self._handovers

    @property
    def saved(self) -> int:
        """Regions in the tier."""
        return len(self._saved)

    # --- the host tier ---

    def save(self, one: EngineOrders) -> None:
        """The valid KV of some sequence, into a free room."""
        each = self._pick(one, lambda each: each.valid > 0 and not (each.doomed or each.ended))
        if each is None or len(self._saved) >= SAVED_MOST:
            return
        stop = min(each.valid, len(each.tokens) - 1) or 1
        region = self._tier.take(stop * self._token_bytes(one))
        if region is None:
            return
        kept = SavedRegion(region, each.text, tuple(each.made), stop)

        def landed(done: TransferDone) -> None:
            if done.status is TransferStatus.OK:
                self._saved.append(replace(kept, region=replace(region, checksum=done.checksum)))
            else:
                self._tier.free(region)

        self._start(one, TransferKind.SLAB_TO_HOST, each, (0, stop), landed, host=region)

    def restore(self, one: EngineOrders) -> None:
        """A saved text in a new sequence, whose first row waits; some with a checksum that is wrong."""
        if not self._saved or not one.layers.may_compute:
            return
        kept = self._saved.pop(self._draw.randrange(len(self._saved)))
        each = one.open(kept.text, kept.made)
        if each is None:
            self._saved.append(kept)
            return
        is_wrong = self._draw.random() < CORRUPTED
        host = replace(kept.region, checksum=kept.region.checksum ^ is_wrong)

        def landed(done: TransferDone) -> None:
            self._saved.append(kept)
            is_ok = done.status is TransferStatus.OK
            is_open = each.number in one.book.open
            if is_open and is_ok == is_wrong and done.status is not TransferStatus.CANCELLED:
                raise AssertionError(f"{done} of a region whose checksum is {'wrong' if is_wrong else 'right'}")
            each.doomed |= not is_ok

        each.after = self._start(one, TransferKind.HOST_TO_SLAB, each, (0, kept.stop), landed, host=host)
        each.issued = each.valid = kept.stop

    def drop_saved(self) -> None:
        """Forget one region of the tier."""
        if self._saved:
            self._tier.free(self._saved.pop(self._draw.randrange(len(self._saved))).region)

    # --- from engine to engine ---

    def move(self, source: EngineOrders, target: EngineOrders) -> None:
        """A sequence's KV into the other engine's slots; then it goes on there."""
        each = self._pick(source, lambda each: each.valid > 1 and not (each.doomed or each.ended or each.after))
        if each is None or not target.layers.may_compute:
            return
        stop = min(each.valid, len(each.text.prompt) + len(each.made) - 1)
        number = target.sequence_number()
        sent = self._send(source, target, each, number, (0, stop), 0)
        if sent is None:
            return

        def verified(is_ok: bool) -> None:
            each.leaving = is_ok
            if is_ok:
                self._handovers.append(Handover(source, target, each, number, stop))
            else:
                target.book.slots.release(number)

        sent(verified)

    def advance(self) -> None:
        """Sequences whose KV is at the other engine go on there, once their last row here is answered."""
        for one in list(self._handovers):
            each, is_open = one.each, one.each.number in one.source.book.open
            if is_open and (each.rows or each.holds or each.transfers):
                continue
            self._handovers.remove(one)
            if is_open and not (each.parked or each.ended or each.doomed) and one.target.layers.may_compute:
                one.target.book.slots.set_use(one.number, SlotUse.OWNED)
                one.target.open(each.text, each.made, one.stop, one.number)
                one.source.close(each)
                self.counts["sequences moved"] += 1
            else:
                each.leaving = False
                one.target.book.slots.release(one.number)

    def push(self, source: EngineOrders, target: EngineOrders) -> None:
        """What a step writes goes to the other engine while the step runs; the receiver looks at it and lets it go."""
        able = [each for each in source.book if each.may_run and not each.after and not each.rows]
        if not able or not target.layers.may_compute or not source.layers.may_compute:
            return
        each = self._draw.choice(able)
        if not (step := source.step([each])):
            return
        row = each.rows[-1]
        number = target.sequence_number()
        sent = self._send(source, target, each, number, (row.start, row.stop), step)
        if sent is not None:
            self.counts["steps pushed"] += 1
            sent(lambda is_ok: target.book.slots.release(number))

    def _send(
        self,
        source: EngineOrders,
        target: EngineOrders,
        each: SoakSequence,
        number: int,
        span: tuple[int, int],
        step: int,
    ) -> Callable[[Callable[[bool], Any]], None] | None:
        """Reserve slots at the target and write there; what is returned starts it and takes what to do in the end."""
        slots = target.book.slots
        if not slots.allocate(number, each.text.slots, SlotUse.RESERVED):
            return None
        self.handles += 1
        handle, theirs = self.handles, columns(slots.residency(number).slots_of(*span))
        whole = columns(slots.residency(number).slots_of(0, each.text.slots))
        if not target.child.rooms.open(handle, *whole):
            slots.release(number)
            return None
        self.rooms[target.name] += 1
        peer = {"peer": target.child.address, "peer_layout": target.layers.layout, "step": step, "peer_handle": handle}
        there = {"peer_extent_start": theirs[0], "peer_extent_length": theirs[1]}

        def start(then: Callable[[bool], Any]) -> None:
            def written(done: TransferDone) -> None:
                target.child.rooms.close(handle)
                target.tell(ClosePeerRoom(handle))
                self.rooms[target.name] -= 1
                if done.status is not TransferStatus.OK or not target.layers.may_compute:
                    then(False)
                    return
                look = Transfer(
                    target.ticket(), TransferKind.PEER_TO_SLAB, 0, self._region(target, span), *theirs, chain=CHAIN,
                    checksum=done.checksum, layout=target.layers.layout,
                )  # fmt: skip
                target.on_transfer[look.ticket] = lambda seen: then(self._is_verified(seen))
                target.tell(look)

            self._start(source, TransferKind.SLAB_TO_PEER, each, span, written, **peer, **there)

        return start

    def _is_verified(self, seen: TransferDone) -> bool:
        """:raises AssertionError: the receiver found other bytes than were sent."""
        if seen.status is TransferStatus.CORRUPT:
            raise AssertionError(f"the receiver found other bytes: {seen}")
        return seen.status is TransferStatus.OK

    # --- helpers ---

    def _start(
        self,
        one: EngineOrders,
        kind: TransferKind,
        each: SoakSequence,
        span: tuple[int, int],
        landed: Callable[[TransferDone], None],
        **more: Any,
    ) -> int:
        """Order a transfer of the sequence's own slots, and perhaps cancel it; its ticket."""
        ticket = one.ticket()
        own = columns(one.book.slots.residency(each.number).slots_of(*span))
        each.transfers.add(ticket)

        def ended(done: TransferDone) -> None:
            each.transfers.discard(ticket)
            landed(done)
            one.book.sweep()

        one.on_transfer[ticket] = ended
        bounded: dict[str, Any] = {
            "extent_start": own[0],
            "extent_length": own[1],
            "step_bytes": self._draw.choice((0, 0, 1 << 12)),
            "layout": one.layers.layout,
            "chain": CHAIN,
        }
        one.tell(Transfer(ticket, kind, each.number, self._region(one, span), **bounded, **more))
        self.counts[kind.name] += 1
        if self._draw.random() < CANCELLED:
            one.tell(CancelTransfer(ticket))
            self.counts["cancels"] += 1
        return ticket

    def _pick(self, one: EngineOrders, which: Callable[[SoakSequence], bool]) -> SoakSequence | None:
        if not one.layers.may_compute:
            return None
        able = [each for each in one.book if not (each.pinned or each.leaving or each.transfers) and which(each)]
        return self._draw.choice(able) if able else None

    def _region(self, one: EngineOrders, span: tuple[int, int]) -> Region:
        return Region(0, one.layers.total, *span)

    def _token_bytes(self, one: EngineOrders) -> int:
        return one.child.ready.kv_bytes_per_token


def columns(extents: Iterable[Extent]) -> tuple[I64, I64]:
    """Extents as a message has them."""
    found = list(extents)
    return i64(first for first, _ in found), i64(length for _, length in found)
