"""A tiny core of engines that step together: it turns drawn numbers into rounds of steps, and learns from the answers.

A text's KV lies in pieces at several members. One member, its master, computes the text's next tokens by MASTERS, with
the others answering for their pieces; or the whole prompt goes round all members by RING, and each keeps a piece; or
it goes round some of them chunk by chunk, while all answer for what they kept of the chunks before; or a chunk is cut
into blocks, each computed where it stays, by MASTERS that answer for each other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from dunlin.effects import Address
from dunlin.messages.engine import Close, Discard, Interrupt, Interrupted, Resume, Step, StepDone, Transfer
from dunlin.messages.types import FinishReason, GroupKind, Keep, Region, TransferKind, Verdict, f32, i8, i32, i64
from tests.engine.commands import make_open, make_step
from tests.engine.execution.members import serve, span_columns

SLOTS_EACH = 256
"""Slots of each text at each member: text n has those from n · SLOTS_EACH on, slot = position."""
STRIPES_AT = 8000
"""The first of the slots that a ring's stripes have for its step."""
MAX_TOKENS = 6
PUSHED_AT = 8200
"""The first of the slots that peers write into."""
RESUMED_FROM = 1_000_000
"""Numbers of steps that go on with parked ones."""


@dataclass(slots=True)
class SharedText:
    """A text: its tokens `[0, valid)` have KV, `length` are known at its master. `pieces` were there before its
    master computed: (start, stop, member).
    """

    number: int
    tokens: list[int]
    master: int
    length: int
    valid: int = 0
    pieces: list[tuple[int, int, int]] = field(default_factory=list)
    is_open_at: list[int] = field(default_factory=list)
    is_lost: bool = False
    is_in_blocks: bool = False
    is_ring: bool = False
    is_in_chunks: bool = False
    block_done: dict[int, bool] = field(default_factory=dict)
    """Of a text in blocks: by member, whether its block of the round is computed."""

    def elsewhere(self) -> list[tuple[int, int, int]]:
        """The pieces that lie at other members."""
        return [piece for piece in self.pieces if piece[2] != self.master]

    @property
    def is_begun(self) -> bool:
        """Whether its prompt is computed in part, by several."""
        return (self.is_in_blocks or self.is_in_chunks) and self.valid < len(self.tokens)


Order = tuple[int, Any]
"""A member, and a message to it."""


class GroupConductor:
    """The texts, and the orders of each round."""

    def __init__(self, members: int, layers: int) -> None:
        self.texts: dict[int, SharedText] = {}
        self.with_peers: dict[int, bool] = {}
        self._members = members
        self._layers = layers
        self._numbers = self._rounds = self._tickets = self._resumes = 0
        self.parked: dict[int, int] = {}
        self.told: set[int] = set()
        self.has_pushed = False
        self._current: dict[int, int] = {}
        self._round: dict[int, dict[int, tuple[int, int]]] = {}

    # --- rounds ---

    def spread(self, length: int, cuts: Sequence[int], owners: Sequence[int], chunk: int) -> list[list[Order]]:
        """A text of which all but the last `chunk` tokens are computed by members that then hold pieces of it: rounds
        of orders, the last of which opens it at its master.
        """
        text = self._text(length, master=owners[0] % self._members)
        known = max(1, length - chunk)
        ends = sorted({0, known, *(cut % known for cut in cuts)})
        text.pieces = [
            (start, stop, owners[at % len(owners)] % self._members) for at, (start, stop) in enumerate(pairwise(ends))
        ]
        orders: list[Order] = []
        self._begin_round()
        for member in {piece[2] for piece in text.pieces}:
            number = text.number + 1000
            step = make_step(self._rounds, (number, 0, known, text.number * SLOTS_EACH), sample=[0])
            orders += [(member, make_open(number, text.tokens)), (member, step)]
        closes = [(member, Close(text.number + 1000)) for member in {piece[2] for piece in text.pieces}]
        starts = [start + text.number * SLOTS_EACH if at == text.master else -1 for start, _, at in text.pieces]
        extents = {"extent_start": i64(starts), "extent_length": i64(stop - start for start, stop, _ in text.pieces)}
        text.valid = known
        text.is_open_at = [text.master]
        opened = make_open(text.number, text.tokens, max_tokens=MAX_TOKENS, **extents)
        return [orders, [*closes, (text.master, opened)]]

    def ring(self, length: int, cuts: Sequence[int]) -> list[Order]:
        """A prompt that goes round all members; each keeps what lies between two cuts, which may be nothing."""
        count = self._members
        length = max(length, count)
        text = self._text(length, master=(length - 1) % count)
        text.is_ring = True
        bounds = [0, *sorted(cut % (length + 1) for cut in cuts[: count - 1]), length]
        text.pieces = [(start, stop, at) for at, (start, stop) in enumerate(pairwise(bounds)) if start < stop]
        text.is_open_at = list(range(count))
        self._begin_round()
        orders: list[Order] = []
        for me in range(count):
            others = [each for each in range(count) if each != me]
            spans = [(0, (other, length, count, at)) for at, other in enumerate(others)]
            kept = [(start, stop) for start, stop, at in text.pieces if at == me]
            columns = {**span_columns(spans), **self._group(me, others, GroupKind.RING)}
            step = make_step(
                self._rounds, (text.number, me, length, STRIPES_AT), sample=[me == text.master], stride=i64([count]),
                keep=_keep(text.number, self._layers, kept), **columns,
            )  # fmt: skip
            orders += [(me, make_open(text.number, text.tokens, max_tokens=MAX_TOKENS)), (me, step)]
            self._note(me, step, {text.number: (me, length)})
        return orders

    def chunks(self, length: int, cuts: Sequence[int], chunk: int) -> list[Order]:
        """The next chunk of a text's prompt, or the first of a new text, round some of the members; each member keeps
        what lies between two cuts, which may be nothing.
        """
        begun = [text for text in self.texts.values() if text.is_in_chunks and text.valid < len(text.tokens)]
        text = begun[0] if begun else self._text(length, 0)
        orders: list[Order] = []
        if not begun:
            text.is_in_chunks, text.is_open_at = True, list(range(self._members))
            opened = make_open(text.number, text.tokens, max_tokens=MAX_TOKENS)
            orders += [(member, opened) for member in text.is_open_at]
        self._begin_round()
        before, stop = list(text.pieces), min(text.length, text.valid + chunk)
        stop = text.length if text.length - stop == 1 else stop
        count = min(2 + cuts[0] % (self._members - 1), stop - text.valid)
        stripes = {(cuts[1] + at) % self._members: range(text.valid + at, stop, count) for at in range(count)}
        inner = sorted(text.valid + cut % (stop - text.valid + 1) for cut in cuts[: count - 1])
        bounds = [text.valid, *inner, stop]
        kept = [(a, b, (cuts[1] + at) % self._members) for at, (a, b) in enumerate(pairwise(bounds)) if a < b]
        text.pieces += kept
        text.master = next(member for member, stripe in stripes.items() if stop - 1 in stripe)
        riders = [each for each in self._ready() if each is not text][:1]
        for me in range(self._members):
            step = _ChunkStep(me, text.number * SLOTS_EACH)
            step.add_text(text, before, stripes)
            step.kept = [each[:2] for each in kept if each[2] == me]
            for rider in riders:
                step.add_rider(rider)
            made = step.make(self._rounds, self._layers, self._group)
            if made is not None:
                orders.append((me, made))
                self._note(me, made, step.bounds)
        return orders

    def blocks(self, length: int, cuts: Sequence[int], chunk: int) -> list[Order]:
        """The next chunk of a text's prompt, or the first of a new text, as a block for each of some members in turn;
        they hold what they computed of it before.
        """
        begun = [text for text in self.texts.values() if text.is_in_blocks and text.valid < len(text.tokens)]
        text = begun[0] if begun else self._text(length, 0)
        orders: list[Order] = []
        if not begun:
            text.is_in_blocks, text.is_open_at = True, list(range(self._members))
            opened = make_open(text.number, text.tokens, max_tokens=MAX_TOKENS)
            orders += [(member, opened) for member in text.is_open_at]
        self._begin_round()
        stop = min(text.length, text.valid + chunk)
        ends = sorted(
            {text.valid, stop, *(text.valid + cut % (stop - text.valid) for cut in cuts[: self._members - 1])}
        )
        turn = cuts[0] % self._members
        new = [(a, b, (turn + at) % self._members) for at, (a, b) in enumerate(pairwise(ends))]
        text.pieces += new
        text.block_done = {member: False for _, _, member in new}
        text.master = new[-1][2]
        return orders + [(me, step) for me in range(self._members) if (step := self._blocks_step(me, text, new))]

    def _blocks_step(self, me: int, text: SharedText, new: list[tuple[int, int, int]]) -> Step | None:
        number, base = text.number, text.number * SLOTS_EACH
        own = [(start, stop) for start, stop, at in new if at == me]
        before = [(row, piece) for row, (start, _) in enumerate(own) for piece in text.pieces if piece[1] <= start]
        theirs = [(row, piece) for row, piece in before if piece[2] != me]
        held = [(a, b, base + a) for a, b, at in text.pieces if at == me]
        parts = [(at, (number, start, stop, [each for each in held if each[1] <= start])) for start, stop, at in new]
        parts = [(at, part) for at, part in parts if at != me and part[3]]
        others = sorted({piece[2] for _, piece in theirs} | {at for at, _ in parts})
        if not own and not parts:
            return None
        columns: dict[str, Any] = {}
        if others:
            spans = [(row, (start, stop, 1, others.index(at))) for row, (start, stop, at) in theirs]
            columns = {**span_columns(spans), **self._group(me, others, GroupKind.MASTERS)}
        if parts:
            columns["serve"] = serve(0, [part for _, part in parts])
            columns["serve"].master[:] = i32(others.index(at) for at, _ in parts)
        rows = [(number, start, stop, base + start) for start, stop in own]
        step = make_step(self._rounds, *rows, sample=[stop == text.length for _, stop in own], **columns)
        self._note(me, step, dict.fromkeys([number], own[0]) if own else {})
        return step

    def masters(self, picks: Sequence[int], most: int) -> list[Order]:
        """The next tokens of some of the texts, each at its master, and the answers for them."""
        ready = self._ready()
        chosen = list({ready[pick % len(ready)].number: ready[pick % len(ready)] for pick in picks} if ready else ())
        texts = [self.texts[number] for number in chosen]
        self._begin_round()
        orders: list[Order] = []
        for me in range(self._members):
            own = [text for text in texts if text.master == me]
            served = [text for text in texts if any(piece[2] == me for piece in text.elsewhere())]
            if own or served:
                orders.append((me, self._masters_step(me, own, served, most)))
        return orders

    def _masters_step(self, me: int, own: list[SharedText], served: list[SharedText], most: int) -> Step:
        holders = {piece[2] for text in own for piece in text.elsewhere()}
        others = sorted(holders | {text.master for text in served})
        rows = [(text.number, text.valid, min(text.length, text.valid + most)) for text in own]
        spans = [
            (row, (start, stop, 1, others.index(at)))
            for row, text in enumerate(own)
            for start, stop, at in text.elsewhere()
        ]
        columns: dict[str, Any] = {}
        if others:
            columns = {**span_columns(spans), **self._group(me, others, GroupKind.MASTERS)}
        if served:
            columns["serve"] = self._serve(me, served, others, most)
        placed = [(number, start, stop, number * SLOTS_EACH + start) for number, start, stop in rows]
        sample = [stop == text.length for (_, _, stop), text in zip(rows, own, strict=True)]
        step = make_step(self._rounds, *placed, sample=sample, **columns)
        self._note(me, step, {number: (start, stop) for number, start, stop in rows})
        return step

    def _serve(self, me: int, served: list[SharedText], others: list[int], most: int) -> Any:
        parts = []
        for text in served:
            own = [(a, b, text.number * SLOTS_EACH + a) for a, b, at in text.elsewhere() if at == me]
            parts.append((text.number, text.valid, min(text.length, text.valid + most), own))
        made = serve(0, parts)
        made.master[:] = i32(others.index(text.master) for text in served)
        return made

    def interrupt(self, member: int, verdict: int, picks: Sequence[int]) -> Order:
        """Some of a member's rows, or all and what it answers for others. Rows of a step without peers are discarded:
        none is parked.
        """
        rows = list(self._round.get(member, ()))
        named = sorted({rows[pick % len(rows)] for pick in picks}) if rows else []
        self._tickets += 1
        wanted = Verdict(verdict) if self.with_peers.get(member) else Verdict.DISCARD
        return member, Interrupt(wanted, i64(named), ticket=self._tickets, up_to_step=self._rounds)

    def end_step(self, member: int, earlier: int) -> Order:
        """Of a member's step all leaves: the round's, or one that is over."""
        self._tickets += 1
        number = self._rounds - 1 if earlier else self._current.get(member, self._rounds)
        return member, Interrupt(Verdict.DISCARD, ticket=self._tickets, step=number)

    def suspend(self, member: int) -> Order:
        """A member's step is parked whole, if it has one with peers."""
        self._tickets += 1
        verdict = Verdict.SUSPEND if self.with_peers.get(member) else Verdict.DISCARD
        return member, Interrupt(verdict, ticket=self._tickets, step=self._current.get(member, self._rounds))

    def resume(self, member: int) -> list[Order]:
        """A member's parked step goes on."""
        if member not in self.parked:
            return []
        self._resumes += 1
        self._current[member] = RESUMED_FROM + self._resumes
        return [(member, Resume(self._current[member], parked_step=self.parked.pop(member)))]

    def push(self, member: int, peer: int) -> list[Order]:
        """The KV that a member's step writes, or keeps, goes behind the step into slots of a peer."""
        found = [(number, row) for number, row in self._round.get(member, {}).items() if self.with_peers.get(member)]
        if not found or member in self.parked or member not in self.told:
            return []
        number, (start, stop) = found[0]
        text = self.texts.get(number)
        if text is not None and text.is_ring and not text.valid:
            start, stop = next(((a, b) for a, b, at in text.pieces if at == member), (0, 0))
        if text is None or text.is_in_chunks or start == stop:
            return []
        self._tickets += 1
        self.has_pushed = True
        current, region = self._current.get(member, self._rounds), Region(0, self._layers, start, stop)
        extents = i64([number * SLOTS_EACH + start]), i64([stop - start])
        pushed = Transfer(
            self._tickets, TransferKind.SLAB_TO_PEER, number, region, *extents,
            peer=Address("engine", f"member-{peer}"), peer_extent_start=i64([PUSHED_AT + 200 * member]),
            peer_extent_length=i64([stop - start]), step=current,
        )  # fmt: skip
        return [(member, pushed)]

    def forget_parked(self, member: int) -> list[Order]:
        """A member's parked step is given up, as if it had answered so."""
        if member not in self.parked:
            return []
        number = self.parked.pop(member)
        self._current[member] = number
        left = i64(self._round.get(member, ()))
        self.learn(member, StepDone(number, i64(), i32(), f32(), i8(), left=left, cut_short=True))
        return [(member, Discard(parked_step=number))]

    def close(self, pick: int) -> list[Order]:
        """A text, at every member that opened it."""
        if not self.texts:
            return []
        text = list(self.texts.values())[pick % len(self.texts)]
        del self.texts[text.number]
        return [(member, Close(text.number)) for member in text.is_open_at]

    def close_lost(self) -> list[Order]:
        """Texts that ended, and those whose ring was not computed whole."""
        lost = [text for text in self.texts.values() if text.is_lost or not text.valid]
        for text in lost:
            del self.texts[text.number]
        return [(member, Close(text.number)) for text in lost for member in text.is_open_at]

    # --- answers ---

    def learn(self, member: int, event: Any) -> None:
        """Take an answer of the round in."""
        if isinstance(event, Interrupted) and event.parked_step:
            self.parked[member] = event.parked_step
            self._current[member] = -1  # what answers the step now is not the end of it
        if not isinstance(event, StepDone) or event.step != self._current.get(member, self._rounds):
            return
        gone = {*event.left, *event.dropped}
        finishes = dict(zip(event.sequence, event.finish, strict=True))
        for number, (_, stop) in self._round.get(member, {}).items():
            text = self.texts.get(number)
            if text is None:
                continue
            if text.is_in_blocks and text.block_done:
                text.is_lost |= number in event.dropped
                text.block_done[member] = number not in gone
                text.length += number in finishes
                text.is_lost |= finishes.get(number, FinishReason.RUNNING) is not FinishReason.RUNNING
            elif number in gone and text.is_begun:
                text.is_lost = True
            elif number in gone:
                text.is_lost |= number in event.dropped or (len(text.is_open_at) > 1 and text.master != member)
            elif text.master == member:
                text.valid = stop
                text.length += number in finishes
                text.is_lost |= finishes.get(number, FinishReason.RUNNING) is not FinishReason.RUNNING

    def end_round(self) -> None:
        """All answers are in: of a chunk in blocks those count that have no gap before them."""
        for text in self.texts.values():
            kept = [piece for piece in text.pieces if piece[1] <= text.valid]
            for piece in text.pieces[len(kept) :] if text.block_done else ():
                if not text.block_done[piece[2]]:
                    text.is_lost |= text.length > len(text.tokens)  # its next token was sampled all the same
                    break
                kept.append(piece)
                text.valid = piece[1]
            if text.block_done:
                text.pieces, text.block_done = kept, {}

    # --- helpers ---

    def _ready(self) -> list[SharedText]:
        """Texts of which a master computes the next tokens."""
        return [text for text in self.texts.values() if text.valid < text.length and not text.is_begun]

    def _text(self, length: int, master: int) -> SharedText:
        self._numbers += 1
        tokens = [(self._numbers * 31 + place * 7) % 400 + 1 for place in range(length)]
        text = self.texts[self._numbers] = SharedText(self._numbers, tokens, master, length)
        return text

    def _begin_round(self) -> None:
        self._rounds += 1
        self._round = {}
        self._current = {}
        self.told = set()
        self.has_pushed = False
        self.with_peers = {}

    def _note(self, member: int, step: Step, rows: dict[int, tuple[int, int]]) -> None:
        self._round[member] = rows
        self.with_peers[member] = bool(step.peers)

    def _group(self, me: int, others: Sequence[int], kind: GroupKind) -> dict[str, Any]:
        """Room r of a member is written by member r - 1."""
        rooms = {"own_room": i64(other + 1 for other in others), "peer_room": i64([me + 1] * len(others))}
        peers = tuple(Address("engine", f"member-{other}") for other in others)
        return {"group": kind, "peers": peers, "exchange": self._rounds, **rooms}


Placed = tuple[int, int, int]
"""(start, stop, member)."""


@dataclass(slots=True)
class _ChunkStep:
    """A member's part of a chunk that goes round: its stripe, a row of another text that rides along, its answers."""

    me: int
    base: int
    kept: list[tuple[int, int]] = field(default_factory=list)
    bounds: dict[int, tuple[int, int]] = field(default_factory=dict)
    _rows: list[tuple[int, int, int, int]] = field(default_factory=list)
    _samples: list[bool] = field(default_factory=list)
    _strides: list[int] = field(default_factory=list)
    _spans: list[tuple[int, tuple[int, int, int, int], bool]] = field(default_factory=list)
    _parts: list[tuple[int, int, Any]] = field(default_factory=list)

    def add_text(self, text: SharedText, before: list[Placed], stripes: dict[int, range]) -> None:
        held = [(start, stop, self.base + start) for start, stop, at in before if at == self.me]
        for other, stripe in stripes.items() if held else ():
            if other != self.me:
                self._parts.append((other, stripe.step, (text.number, stripe.start, stripe.stop, held)))
        if (own := stripes.get(self.me)) is None:
            return
        self._add_row(text, own, STRIPES_AT)
        self._spans += [(0, (start, stop, 1, at), True) for start, stop, at in before if at != self.me]
        self._spans += [(0, (o.start, o.stop, o.step, at), False) for at, o in stripes.items() if at != self.me]

    def add_rider(self, text: SharedText) -> None:
        """One token of a text, at its master."""
        slot, elsewhere = text.number * SLOTS_EACH, text.elsewhere()
        own = [(start, stop, slot + start) for start, stop, at in elsewhere if at == self.me]
        if own:
            self._parts.append((text.master, 1, (text.number, text.valid, text.valid + 1, own)))
        if text.master == self.me:
            self._spans += [(len(self._rows), (start, stop, 1, at), True) for start, stop, at in elsewhere]
            self._add_row(text, range(text.valid, text.valid + 1), slot + text.valid)

    def make(self, number: int, layers: int, group: Callable[..., dict[str, Any]]) -> Step | None:
        """The step; None if it has no part."""
        others = sorted({span[3] for _, span, _ in self._spans} | {at for at, _, _ in self._parts})
        if not self._rows and not self._parts:
            return None
        columns: dict[str, Any] = {}
        if others:
            spans = [(row, (*span[:3], others.index(span[3]))) for row, span, _ in self._spans]
            asked = i8([is_asked for _, _, is_asked in self._spans])
            columns = {**group(self.me, others, GroupKind.RING), **span_columns(spans), "span_asked": asked}
        if self._parts:
            columns["serve"] = serve(0, [part for _, _, part in self._parts])
            columns["serve"].master[:] = i32(others.index(at) for at, _, _ in self._parts)
            columns["serve"].stride[:] = i64(stride for _, stride, _ in self._parts)
        keep = _keep(self._rows[0][0], layers, self.kept) if self.kept else None
        return make_step(number, *self._rows, sample=self._samples, stride=i64(self._strides), keep=keep, **columns)

    def _add_row(self, text: SharedText, positions: range, slot: int) -> None:
        stop = positions[-1] + 1
        self._rows.append((text.number, positions.start, positions.stop, slot))
        self._samples.append(stop == text.length)
        self._strides.append(positions.step)
        self.bounds[text.number] = (positions.start, stop)


def _keep(number: int, layers: int, kept: list[tuple[int, int]]) -> Keep | None:
    if not kept:
        return None
    count = len(kept)
    return Keep(
        i32([0] * count), i32([0] * count), i32([layers] * count), i64(start for start, _ in kept),
        i64(stop for _, stop in kept), i64(number * SLOTS_EACH + start for start, _ in kept),
    )  # fmt: skip
