"""The steps of a group that have not been answered: which members compute which rows, and what they said.

Decides nothing, and knows no slot.
"""

from dataclasses import dataclass, field

from dunlin.messages.engine import StepDone
from dunlin.messages.group import GroupStepDone
from dunlin.policies.groups.elastic import Block
from dunlin.policies.groups.elastic_rings import RingChunk
from services.instance.group.leading.numbers import GroupNumbers
from services.instance.group.leading.spread import SpreadSequence
from services.instance.sequence.wait_clock import StepTiming

MAX_OUTSTANDING = 2
"""Exchanges of a group without an answer: while members compute one, they have the next."""


@dataclass(slots=True)
class ExchangeRow:
    """A sequence's part of an exchange: its blocks, in order of position, each computed by its member.

    `samples`: the member of the last block chooses the next token. With a `ring` the blocks are what stays.
    """

    spread: SpreadSequence
    blocks: tuple[Block, ...]
    samples: bool
    ring: RingChunk | None = None

    @property
    def members(self) -> tuple[int, ...]:
        """The members that compute it."""
        return self.ring.stripes if self.ring is not None else tuple(block.member for block in self.blocks)

    @property
    def computed_by(self) -> set[int]:
        """Those members, and the ones that answer for the keys before: the degree of parallelism is their number."""
        return {*self.members, *(block.member for block in self.spread.blocks if block.start < self.stop)}

    @property
    def start(self) -> int:
        """The first position."""
        return self.blocks[0].start

    @property
    def stop(self) -> int:
        """The position after the last."""
        return self.blocks[-1].stop

    @property
    def sampler(self) -> int:
        """The member of the last block."""
        return self.blocks[-1].member


@dataclass(slots=True)
class Exchange:
    """One iteration of the group, computed by `waiting` members still; `answers` are those of the others, None where a
    member did nothing (it refused, or is lost).
    """

    number: int
    rows: list[ExchangeRow]
    timing: StepTiming
    waiting: set[int]
    answers: dict[int, StepDone | None] = field(default_factory=dict)
    refusal: str = ""
    is_cancelled: bool = False

    def answer(self, member: int, done: StepDone | None, refusal: str) -> None:
        """A member answered, or is lost."""
        self.waiting.discard(member)
        self.answers[member] = done
        self.refusal = self.refusal or refusal

    @property
    def tokens(self) -> int:
        """The tokens that its rows compute."""
        total = 0
        for row in self.rows:
            total += row.stop - row.start
        return total

    @property
    def is_incomplete(self) -> bool:
        """Whether a member did nothing: it refused, or is lost."""
        return None in self.answers.values()

    @property
    def is_spoilt(self) -> bool:
        """Whether a member did not do its part: the others may wait for it in vain."""
        return any(done is None or done.cut_short or len(done.left) > 0 for done in self.answers.values())

    def is_computed(self, row: ExchangeRow) -> bool:
        """Whether every part of the row was."""
        number = row.spread.number
        for member in row.members:
            done = self.answers.get(member)
            if done is None or number in done.left or number in done.dropped or number in done.failed:
                return False
        return True

    def has_failed(self, row: ExchangeRow) -> bool:
        """Whether the row ran, and there is no next token."""
        done = self.answers.get(row.sampler)
        return done is not None and row.spread.number in done.failed

    def sample_of(self, row: ExchangeRow) -> tuple[StepDone, int] | None:
        """The answer with the row's token, and the token's index there."""
        done = self.answers.get(row.sampler) if row.samples else None
        if done is None or row.spread.number not in done.sequence:
            return None
        return done, done.sequence.index(row.spread.number)


class ExchangeLedger:
    """Owns the outstanding exchanges, in order."""

    def __init__(self, numbers: GroupNumbers) -> None:
        self.outstanding: list[Exchange] = []
        self._numbers = numbers

    @property
    def has_room(self) -> bool:
        """Whether one more may be sent."""
        return len(self.outstanding) < MAX_OUTSTANDING

    @property
    def is_cancelling(self) -> bool:
        """Whether members were told to end exchanges early, and have not answered."""
        return any(exchange.is_cancelled for exchange in self.outstanding)

    def next_number(self, group: int) -> int:
        """The number of the next exchange."""
        return self._numbers.next(group)

    def answer(self, member: int, message: GroupStepDone) -> bool:
        """Note a member's answer; False: none is awaited."""
        for exchange in self.outstanding:
            if exchange.number == message.exchange and member in exchange.waiting:
                exchange.answer(member, None if message.refusal else message.done, message.refusal)
                return True
        return False

    def lose(self, member: int) -> int:
        """Answers of the member will not come any more; the newest exchange that it has not answered, 0 for none."""
        newest = 0
        for exchange in self.outstanding:
            if member in exchange.waiting:
                newest = exchange.number
                exchange.answer(member, None, "the member is lost")
        return newest

    def spoilt(self) -> dict[int, int]:
        """By member that computes for nothing: the newest of its exchanges to cancel."""
        if not any(exchange.is_spoilt for exchange in self.outstanding):
            return {}
        found: dict[int, int] = {}
        for exchange in self.outstanding:
            for member in [] if exchange.is_cancelled else sorted(exchange.waiting):
                found[member] = exchange.number
            exchange.is_cancelled = True
        return found

    def take_answered(self) -> Exchange | None:
        """The oldest exchange, if all its members have answered: their order is that of the tokens."""
        if not self.outstanding or self.outstanding[0].waiting:
            return None
        return self.outstanding.pop(0)
