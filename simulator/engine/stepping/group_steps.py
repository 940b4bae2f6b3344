"""Steps of modelled engines that compute together: they end together, and what one tells of its KV the others check.

The real ones exchange queries, results and K/V in each layer. Here a step takes its time from when the last of its
peers begins (`group_counts` counts what it exchanges); it waits until the peers' steps of the same exchange are
through, and then looks whether the keys that it was promised are those of its sequences.
"""

from collections.abc import Callable, Container
from dataclasses import dataclass

from dunlin.effects import Address
from dunlin.messages.engine import Step
from dunlin.messages.types import GroupKind
from simulator.engine.errors import ContractBroken
from simulator.engine.kv_audit import KvAudit
from simulator.engine.stepping.group_meetings import GroupMeetings, Told
from simulator.engine.stepping.step_queue import row_slots


@dataclass(frozen=True, slots=True)
class PeersDue:
    """A peer's step is through: the one that waits for it may be, too."""


@dataclass(frozen=True, slots=True)
class SplitSpans:
    """The tokens of a row that lie at peers, as (peer, positions), and a ring's stripes that those compute."""

    spans: tuple[tuple[Address, range], ...]
    stripes: tuple[tuple[Address, range], ...] = ()

    def covers(self, start: int, stop: int) -> bool:
        """Whether the spans without strides name all tokens `[start, stop)`; prompts are long, so none is counted."""
        at = start
        for positions in sorted((each for _, each in self.spans if each.step == 1), key=lambda each: each.start):
            if positions.start > at:
                break
            at = max(at, positions.stop)
        return at >= stop

    @property
    def positions(self) -> frozenset[int]:
        return frozenset(position for _, positions in self.spans for position in positions)

    @property
    def peers(self) -> set[Address]:
        return {peer for peer, _ in (*self.spans, *self.stripes)}

    def covered(self, own: range) -> range:
        """The tokens of all stripes, the `own` one included."""
        stripes = [own, *(positions for _, positions in self.stripes)]
        return range(min(each.start for each in stripes), max(each[-1] for each in stripes) + 1)


class GroupSteps:
    """One engine's steps with peers. `met`: the peers whose memory is mapped; `life(peer)`: as it was met (0: it cannot
    be written any more); `wake(engine)`: look again; `is_near(peer)`: it is an engine of the same node.
    """

    def __init__(
        self, engine: Address, meetings: GroupMeetings, met: Container[Address], life: Callable[[Address], int],
        wake: Callable[[Address], None], audit: KvAudit | None, is_near: Callable[[Address], bool],
    ) -> None:  # fmt: skip
        self.is_near = is_near
        self._engine = engine
        self._meetings = meetings
        self._met = met
        self._life = life
        self._wake = wake
        self._audit = audit
        self._parked: dict[int, dict[Address, int]] = {}

    def refusal(self, step: Step) -> str:
        """Why the step cannot be computed with peers; empty if it can, or has none."""
        if gone := [peer for peer in step.peers if peer not in self._met]:
            return f"{gone} were not met"
        return "" if step.exchange > 0 or not step.peers else "peers without the number of an exchange"

    def begin(self, now_s: float, step: Step) -> None:
        """The step begins; peers whose steps have begun before go on only now."""
        for peer in step.peers:
            if self._meetings.begin(now_s, self._engine, peer, step.exchange):
                self._wake(peer)

    def park(self, step: Step) -> None:
        """The step is suspended. What its peers say meanwhile is kept for it; one that is met anew is another peer."""
        self._parked[step.exchange] = {peer: self._life(peer) for peer in step.peers}
        for peer in step.peers:
            self._meetings.park(self._engine, peer, step.exchange)

    def end(self, step: Step) -> None:
        """The step is answered for good."""
        self._parked.pop(step.exchange, None)

    def _reaches(self, step: Step, peer: Address) -> bool:
        """Whether the peer can be written still, as it was when the step began."""
        life = self._life(peer)
        return life != 0 and self._parked.get(step.exchange, {}).get(peer, life) == life

    def all_begun_s(self, step: Step) -> float | None:
        """When the last peer began, of those that go on; None: one has not begun."""
        last_s = 0.0
        for peer in step.peers:
            begun_s = 0.0 if self._is_gone(peer, step) else self._meetings.begun_s(peer, self._engine, step.exchange)
            if begun_s is None:
                return None
            last_s = max(last_s, begun_s)
        return last_s

    def is_through(self, step: Step, rows: Container[int]) -> bool:
        """The own work is done, that of `rows`: tell the peers; returns whether theirs is, too."""
        for index, peer in enumerate(step.peers):
            is_silent = self._meetings.told(self._engine, peer, step.exchange) is None
            if (
                is_silent
                and self._reaches(step, peer)
                and not self._meetings.is_given_up(self._engine, peer, step.exchange)
            ):
                self._meetings.reach(self._engine, peer, step.exchange, self._tells(step, rows, index))
                self._wake(peer)
        return all(
            self._meetings.told(peer, self._engine, step.exchange) is not None or self._is_gone(peer, step)
            for peer in step.peers
        )

    def lacks(self, step: Step, rows: list[int]) -> bool:
        """Whether a step that these rows need has ended early, or they cannot be computed with its peer: it lacks rows
        of this step, or cannot be written any more.
        """
        needed = set().union(*(split.peers for row, split in self.spans(step).items() if row in rows))
        is_cut_off = any(not self._reaches(step, peer) for peer in step.peers)
        given_up = (peer for peer in needed if self._meetings.is_given_up(self._engine, peer, step.exchange))
        return is_cut_off or any(self._is_gone(peer, step) for peer in needed) or any(given_up)

    def give_up(self, step: Step) -> None:
        """The own step ends early: the peers' need not wait for it."""
        for peer in [peer for peer in step.peers if self._reaches(step, peer)]:
            self._meetings.give_up(self._engine, peer, step.exchange)
            self._wake(peer)

    def give_up_fed(self, step: Step, rows: Container[int]) -> None:
        """Peers that read keys which rows were to write in this step, of which only `rows` run, cannot go on."""
        serve = step.serve
        gone = [row for row in range(len(step.sequence)) if row not in rows]
        if serve is None or not gone:
            return
        slots = row_slots(step)
        unwritten = {slot for row in gone for slot in slots[row]}
        for part, start, stop, slot in zip(serve.span_part, serve.span_start, serve.span_stop, serve.slot, strict=True):
            peer = step.peers[serve.master[part]]
            if not unwritten.isdisjoint(range(slot, slot + stop - start)) and self._reaches(step, peer):
                self._meetings.give_up(self._engine, peer, step.exchange)
                self._wake(peer)

    def _is_gone(self, peer: Address, step: Step) -> bool:
        return self._meetings.is_given_up(peer, self._engine, step.exchange)

    def spans(self, step: Step) -> dict[int, SplitSpans]:
        """The spans elsewhere, by row."""
        count = len(step.span_row)
        strides = step.span_stride or [1] * count
        asked = (step.span_asked or [0] * count) if step.group is GroupKind.RING else [1] * count
        found: dict[int, tuple[list[tuple[Address, range]], list[tuple[Address, range]]]] = {}
        for row, start, stop, stride, holder, is_asked in zip(
            step.span_row, step.span_start, step.span_stop, strides, step.span_holder, asked, strict=True
        ):
            spans, stripes = found.setdefault(row, ([], []))
            (spans if is_asked else stripes).append((step.peers[holder], range(start, stop, stride)))
        return {row: SplitSpans(tuple(spans), tuple(stripes)) for row, (spans, stripes) in found.items()}

    def check(self, step: Step, sequence: int, split: SplitSpans, start: int) -> bool:
        """Compare what the peers told of tokens before `start` with the sequence's own text; returns whether they told
        all of it: a ring's row that does not run at a peer is no breach, but what it leaves here does not count.

        Raises:
            ContractBroken: a peer holds something else, did not answer for a span, or no span names such a token.
        """
        if self._audit is None:
            return True
        if not self._audit.elsewhere(sequence, start) <= split.positions:
            raise ContractBroken(f"sequence {sequence}: a row reads tokens that lie elsewhere, and no span names them")
        is_whole = True
        for is_stripe, spans in ((False, split.spans), (True, split.stripes)):
            for peer, positions in spans:
                told = (self._meetings.told(peer, self._engine, step.exchange) or {}).get(sequence, {})
                found = [told.get(position) for position in positions]
                if is_stripe and found.count(None) == len(found):
                    is_whole = False
                elif found != self._audit.digests(sequence, positions):
                    raise ContractBroken(f"sequence {sequence}: {peer} does not hold tokens {positions}")
        return is_whole

    def _tells(self, step: Step, rows: Container[int], index: int) -> Told:
        """What the engine's step tells a peer: the K/V of its stripes, or of the spans that it answers for."""
        told: Told = {}
        if self._audit is None:
            return told
        if step.group is GroupKind.RING:
            for row in [row for row, split in self.spans(step).items() if split.stripes and row in rows]:
                positions = range(step.start[row], step.stop[row], step.stride[row] if step.stride else 1)
                digests = self._audit.digests(step.sequence[row], positions)
                told[step.sequence[row]] = dict(zip(positions, digests, strict=True))
        serve = step.serve
        if serve is not None:
            written = self._written(step, rows)
            for part, start, stop, slot in zip(
                serve.span_part, serve.span_start, serve.span_stop, serve.slot, strict=True
            ):
                if serve.master[part] == index:
                    slots = list(range(slot, slot + stop - start))
                    found = self._audit.content_of(slots)
                    content = [written.get(slot, content) for slot, content in zip(slots, found, strict=True)]
                    told.setdefault(serve.sequence[part], {}).update(zip(range(start, stop), content, strict=True))
        return told

    def _written(self, step: Step, rows: Container[int]) -> dict[int, int]:
        """What those of the step's `rows` write: in each layer that is there before the engine answers for it."""
        assert self._audit is not None
        written: dict[int, int] = {}
        for row, slots in enumerate(row_slots(step)):
            if row in rows:
                digests = self._audit.digests(step.sequence[row], range(step.start[row], step.stop[row]))
                written.update(zip(slots, digests, strict=False))
        return written
