"""The steps of the group that this instance leads: which rows the next exchange has, and what becomes of them.

Chunks of prompts ride along with decode rows. What came to nothing is computed again where it was, or its sequence goes
back to its dispatcher.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dunlin.cost.models import StepTimes
from dunlin.effects import After, Effect, Send
from dunlin.messages.group import CancelGroupSteps, GroupStepDone
from dunlin.messages.lifecycle import MissCause
from dunlin.messages.types import Figure, RejectedOption, Why
from dunlin.policies.groups.elastic import Block, cut_chunk
from dunlin.policies.groups.elastic_rings import RingChunk
from dunlin.policies.groups.group_turns import PromptTurn, chunk_within, response_order
from services.instance.group.config import InstanceGroupsConfig
from services.instance.group.leading.exchange_tokens import ExchangeTokens
from services.instance.group.leading.exchanges import Exchange, ExchangeLedger, ExchangeRow
from services.instance.group.leading.guest_requests import GuestRequests
from services.instance.group.leading.ring_totals import RingTotals
from services.instance.group.leading.roster import GroupRoster
from services.instance.group.leading.spread import SpreadSequence
from services.instance.group.leading.spread_table import SpreadTable
from services.instance.group.leading.step_columns import group_steps
from services.instance.group.leading.suspects import on_trial
from services.instance.scheduling.lifecycle import SequenceLifecycle
from services.instance.sequence import crash_suspects
from services.instance.sequence.wait_clock import StepTiming

MAX_FAILURES = 4
"""Steps of a sequence in a row that come to nothing; then it is returned."""


@dataclass(frozen=True, slots=True)
class RowRetry:
    """Compute again what came to nothing, of the sequence of that number."""

    number: int


class SpreadSteps:
    """Composes the exchanges of one group, and takes in their answers."""

    def __init__(
        self,
        config: InstanceGroupsConfig,
        lifecycle: SequenceLifecycle,
        spreads: SpreadTable,
        roster: GroupRoster,
        requests: GuestRequests,
        tokens: ExchangeTokens,
        times: Callable[[], StepTimes | None],
        rings: RingTotals,
        ledger: ExchangeLedger,
    ) -> None:
        self.ledger = ledger
        self._config = config
        self._lifecycle = lifecycle
        self._spreads = spreads
        self._roster = roster
        self._requests = requests
        self._tokens = tokens
        self._times = times
        self._rings = rings

    # --- composing ---

    def advance(self, now_s: float) -> list[Effect]:
        """Send as many exchanges as may be outstanding, while there are rows for them."""
        effects: list[Effect] = []
        while self.ledger.has_room and not self.ledger.is_cancelling:
            rows = self._choose_rows(now_s, effects)
            if not rows:
                break
            effects += self._send(now_s, rows)
        return effects

    def _choose_rows(self, now_s: float, effects: list[Effect]) -> list[ExchangeRow]:
        """The rows of the next exchange, decode rows first; what they need is added to `effects`."""
        live = self._spreads.live()
        for spread in on_trial(live):
            if blocks := self._next_blocks(spread, dict.fromkeys(self._roster.placeable(), 1.0)):
                return [self._issue(spread, blocks, None, effects)]
        runnable = self._in_turn(now_s, [spread for spread in live if not spread.sequence.trial_stop])
        left = dict.fromkeys(self._roster.placeable(), 1.0)
        rows = self._choose_ring(runnable, left, effects)
        for spread in [each for each in runnable if not rows or each is not rows[0].spread]:
            if blocks := self._next_blocks(spread, left):
                rows.append(self._issue(spread, blocks, None, effects))
        return rows

    def _choose_ring(
        self, spreads: Sequence[SpreadSequence], left: dict[int, float], effects: list[Effect]
    ) -> list[ExchangeRow]:
        """The row of the first prompt that goes round, if any: it takes all that its members may compute of prompts."""
        for spread in spreads:
            if (chunk := self._next_ring(spread)) is not None:
                left.update(dict.fromkeys(chunk.stripes, 0.0))
                return [self._issue(spread, chunk.kept, chunk, effects)]
        return []

    def _in_turn(self, now_s: float, spreads: Sequence[SpreadSequence]) -> list[SpreadSequence]:
        """Those that decode, then prompts in the order of their turns."""
        prompts = [spread for spread in spreads if not spread.decodes]
        turns = [PromptTurn(each.to_compute, now_s - each.sequence.arrived_s, each.importance) for each in prompts]
        return [*(each for each in spreads if each.decodes), *(prompts[index] for index in response_order(turns))]

    def _next_blocks(self, spread: SpreadSequence, left: dict[int, float]) -> tuple[Block, ...]:
        """The blocks of its next row, if their members may compute them now; see `_blocks`."""
        blocks = self._blocks(spread, left) if self._may_run(spread) else ()
        return blocks if blocks and self._may_master(spread, [block.member for block in blocks]) else ()

    def _issue(
        self, spread: SpreadSequence, blocks: tuple[Block, ...], ring: RingChunk | None, effects: list[Effect]
    ) -> ExchangeRow:
        samples = blocks[-1].stop == spread.sequence.length
        row = ExchangeRow(spread, blocks, samples, ring)
        for member in row.members:
            if not spread.guests[member].knows_text:
                effects.append(self._requests.open(spread, member, 0))
        if spread.redo:
            spread.redo.popleft()
        spread.issue(blocks, samples, ring)
        return row

    def _next_ring(self, spread: SpreadSequence) -> RingChunk | None:
        """The next chunk of its prompt that goes round, if it can now."""
        ring, start = spread.ring, spread.sequence.issued
        if ring is None or start >= ring.stop or spread.is_opening or not self._may_run(spread):
            return None
        if not spread.has_ring_slots or not self._may_master(spread, ring.members):
            return None
        return ring.chunk(start, chunk_within(self._times(), start, self._config.step_s, ring.most))

    def _may_run(self, spread: SpreadSequence) -> bool:
        """Whether all members with tokens of it can be named in a step."""
        is_held = spread.is_paused or spread.is_rolling_back or spread.is_moving
        return not is_held and spread.holders() <= self._roster.taking_part

    def _may_master(self, spread: SpreadSequence, members: Sequence[int]) -> bool:
        """Whether the members have the text, or can be told it now: all of it is known while no step names it, and what
        they were asked before is answered.
        """
        unaware = [spread.guests[member] for member in members if not spread.guests[member].knows_text]
        is_told = not unaware or not (spread.sequence.in_steps or any(guest.asked for guest in unaware))
        return is_told and self._roster.taking_part.issuperset(members)

    def _blocks(self, spread: SpreadSequence, left: dict[int, float]) -> tuple[Block, ...]:
        """The blocks of its next row; none: it has no row now. `left` is the share of this exchange that each member
        has for prompts still.
        """
        sequence = spread.sequence
        if spread.redo:
            return spread.redo[0]
        if not sequence.remaining:
            return ()
        if spread.decodes:
            master = spread.guests.get(spread.master)
            start = sequence.issued
            return (Block(spread.master, start, start + 1),) if master is not None and master.room else ()
        return self._chunk(spread, left)

    def _chunk(self, spread: SpreadSequence, left: dict[int, float]) -> tuple[Block, ...]:
        """The next chunk of a prompt, once all of it has slots."""
        awaits_ring = spread.ring is not None or (spread.seeks_ring and not spread.after_hole)
        if spread.missing or spread.is_opening or awaits_ring:
            return ()
        sequence, config = spread.sequence, self._config
        whole = chunk_within(self._times(), sequence.issued, config.step_s, config.chunk_tokens)
        rooms = spread.rooms(self._spreads.rows(), {member: int(share * whole) for member, share in left.items()})
        if sequence.trial_stop:
            rooms = sorted(rooms, key=lambda room: (-room.slots, room.member))[:1]
        blocks = cut_chunk(sequence.issued, spread.hole_stop, rooms)
        for block in blocks:
            left[block.member] -= (block.stop - block.start) / whole
        return tuple(blocks)

    def _send(self, now_s: float, rows: list[ExchangeRow]) -> list[Effect]:
        group = self._roster.group
        number = self.ledger.next_number(group)
        steps = group_steps(group, number, rows)
        timing = StepTiming(number, now_s, now_s, now_s)
        self.ledger.outstanding.append(Exchange(number, rows, timing, set(steps)))
        return [Send(self._roster.address(member), step) for member, step in steps.items()]

    # --- answers ---

    def on_done(self, member: int, message: GroupStepDone) -> bool:
        """A member answered; False: nothing was asked."""
        return self.ledger.answer(member, message)

    def lose(self, member: int) -> list[Effect]:
        """The member answers no step any more. One that only comes to it now would hold up those that follow."""
        newest = self.ledger.lose(member)
        return self._cancel({member: newest}) if newest else []

    def settle(self, now_s: float) -> list[Effect]:
        """Take in the exchanges that are answered, in their order; cancel what others wait for in vain."""
        effects = self._cancel(self.ledger.spoilt())
        while (exchange := self.ledger.take_answered()) is not None:
            effects += self._settle(now_s, exchange)
        return effects

    def cancel_all(self) -> list[Effect]:
        """End all exchanges; no member is waited for any more."""
        found: dict[int, int] = {}
        for exchange in self.ledger.outstanding:
            found |= dict.fromkeys(sorted(exchange.waiting), exchange.number)
        self.ledger.outstanding.clear()
        return self._cancel(found)

    def end_outstanding(self) -> list[Effect]:
        """Have all members end what they have not answered: something is late."""
        found: dict[int, int] = {}
        for exchange in self.ledger.outstanding:
            found |= dict.fromkeys(sorted(exchange.waiting), exchange.number)
            exchange.is_cancelled = True
        return self._cancel(found)

    def cancel_useless(self) -> list[Effect]:
        """Cancel the first exchanges if they compute nothing but prompts of sequences that are over."""
        found: dict[int, int] = {}
        for exchange in self.ledger.outstanding:
            if any(row.spread.is_live or row.stop - row.start == 1 for row in exchange.rows):
                break
            if not exchange.is_cancelled:
                found |= dict.fromkeys(sorted(exchange.waiting), exchange.number)
            exchange.is_cancelled = True
        return self._cancel(found)

    def _cancel(self, newest: Mapping[int, int]) -> list[Effect]:
        """Tell members, each with an exchange's number, to end that one and all before it."""
        group = self._roster.group
        return [Send(self._roster.address(member), CancelGroupSteps(group, newest[member])) for member in newest]

    def _settle(self, now_s: float, exchange: Exchange) -> list[Effect]:
        exchange.timing.ended_s = now_s
        counted: list[ExchangeRow] = []
        effects: list[Effect] = []
        for row in exchange.rows:
            row.spread.sequence.in_steps -= 1
            if not row.spread.is_live:
                continue
            if exchange.has_failed(row):
                effects += self._lifecycle.fail(row.spread.sequence)
            elif self._counts(exchange, row):
                self._count(row)
                counted.append(row)
            else:
                self._undo(row)
        effects += self._tokens.deliver(now_s, exchange, counted)
        for row in exchange.rows:
            if row.spread.is_rolling_back and not row.spread.sequence.in_steps:
                effects += self._roll_back(exchange, row.spread)
        return effects

    def _counts(self, exchange: Exchange, row: ExchangeRow) -> bool:
        """Whether its KV is whole, and follows what is valid."""
        follows = not row.spread.is_rolling_back and row.start == row.spread.sequence.valid
        has_token = not row.samples or exchange.sample_of(row) is not None
        return follows and has_token and exchange.is_computed(row)

    def _count(self, row: ExchangeRow) -> None:
        row.spread.count(row.stop)
        row.spread.sequence.pending -= row.samples
        row.spread.failures = 0
        self._rings.tokens += row.stop - row.start if row.ring is not None else 0
        if row.samples:
            row.spread.losses = 0
        crash_suspects.clear_if_past_crash(row.spread.sequence)

    def _undo(self, row: ExchangeRow) -> None:
        """It came to nothing: no step is composed for it until those that name it are answered. Its members are told
        the text again, for they may have chosen a token that does not count.
        """
        spread = row.spread
        spread.sequence.blame(MissCause.INTERRUPTED)
        spread.is_rolling_back = True
        redone_stop = spread.redo[-1][-1].stop if spread.redo else spread.sequence.valid
        if row.ring is None and row.start == redone_stop:  # a row behind a ring that is undone, too, follows nothing
            spread.redo.append(row.blocks)
        for member in row.members:
            spread.forget_text(member)

    def _roll_back(self, exchange: Exchange, spread: SpreadSequence) -> list[Effect]:
        """Go on after its valid KV, after a while; or return it where that happens too often."""
        if not spread.is_live:
            return []
        has_lost = spread.has_lost
        spread.roll_back()
        if has_lost:
            return []
        spread.failures += 1
        figures = (Figure("tokens", spread.sequence.valid), Figure("failures", spread.failures))
        if spread.failures >= MAX_FAILURES:
            rejected = (RejectedOption("compute it once more", exchange.refusal or "its rows left the step"),)
            why = Why("group steps", "its steps come to nothing", figures, rejected)
            return self._lifecycle.return_to_dispatcher(spread.sequence, why)
        spread.is_paused = True
        return [After(self._config.retry_s * (spread.failures - 1), RowRetry(spread.number))]
