"""No tenant reads what another wrote.

    python -m benchmarks.kv.tenant_isolation [--operations N] [--seed S] [--slots N]

Random operations on one slab, of two tenants whose texts begin alike: sequences start, compute, share, are preempted,
cancelled and ended, room is set aside and taken over. Every slot is tainted with what was written into it: the tenant
and every token up to that position. Before a sequence computes, and when it is looked at, all of its slots must hold
its own text under its own tenant, whichever sequence wrote them; and no slot of a running sequence may be written by
another.
"""

import argparse
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from dunlin.effects import Address
from dunlin.messages.dispatch import Place
from dunlin.messages.types import i32
from services.instance.kv.kv_cache import KvCache
from services.instance.kv.residency import Extent
from services.instance.sequence.sequence import Sequence

TENANTS = ("one", "two")
STEMS = [[stem] * length for stem in (1, 2) for length in (16, 33, 48, 90)]
"""What many texts begin with, in both tenants."""

RUN_AHEAD_TOKENS = 8
CHECK_EVERY = 1000
"""Operations between two looks at the whole table and tree."""

Taint = tuple[str, int]
"""(tenant, digest of the text up to a position)."""


class RandomSource(Protocol):
    """Where choices come from: `random.Random`, or a test that draws them."""

    def randint(self, low: int, high: int) -> int: ...


@dataclass
class ModelSequence:
    """A sequence as its engine sees it: `slots[i]` is where the KV of token i lies."""

    sequence: Sequence
    digests: list[int]
    slots: list[int] = field(default_factory=list)

    def taint(self, position: int) -> Taint:
        return self.sequence.place.tenant, self.digests[position]


class ForeignRead(AssertionError):
    """A sequence would have read what is not its own."""


class IsolationModel:
    """Owns one slab, what is in its slots, and the sequences that play. Each operation checks what it reads."""

    def __init__(self, slots: int, dice: RandomSource) -> None:
        self.slab = KvCache(slots, "weights")
        self.players: list[ModelSequence] = []
        self.counts: Counter[str] = Counter()
        self._content: list[Taint | None] = [None] * slots
        self._dice = dice
        self._numbers = 0
        self._reserved: list[tuple[int, int]] = []
        self._turns = (
            self.start,
            self.start,
            self.compute,
            self.compute,
            self.compute,
            self.end,
            self.look,
            self.aside,
        )

    def turn(self) -> None:
        """One random operation."""
        self._turns[self._dice.randint(0, len(self._turns) - 1)]()

    def start(self) -> None:
        """A new text: a stem, then tokens of its own, or what another sequence has said so far."""
        tenant, known = TENANTS[self._dice.randint(0, 1)], self._text()
        self._numbers += 1
        place = Place(self._numbers, 1, i32(known), len(known), 64, tenant=tenant)
        sequence = Sequence(self._numbers, self._numbers, Address("dispatcher", "d", 1), place)
        if self.slab.available_slots < self.slab.slots_needed(sequence, len(known) + RUN_AHEAD_TOKENS):
            self.counts["no room"] += 1
            return
        reused = self.slab.attach_prefix(sequence)
        if not self.slab.allocate(sequence, len(known) + RUN_AHEAD_TOKENS - reused):
            raise AssertionError(f"the room that was there is gone: {self.slab!r}")
        sequence.issued = sequence.valid = reused
        player = ModelSequence(sequence, _digests(known))
        player.slots = _slots(self.slab.extents(sequence, 0, reused))
        self.players.append(player)
        self.counts["started"] += 1
        self.counts["tokens reused"] += reused
        self._read(player)

    def compute(self) -> None:
        """A row of a sequence: it reads what it has, then writes behind it; at the end of the text a token is said."""
        if (player := self._any()) is None:
            return
        self._read(player)
        sequence = player.sequence
        if sequence.issued == len(sequence.tokens):
            sequence.tokens.append(self._dice.randint(1, 3))
            player.digests.append(_absorb(player.digests[-1], sequence.tokens[-1]))
        stop = min(len(sequence.tokens), sequence.issued + self._dice.randint(1, 64))
        missing = stop - self.slab.held_positions(sequence)
        if missing > 0 and not self.slab.allocate(sequence, missing):
            self._leave(player, preempted=True)
            return
        slots = _slots(self.slab.extents(sequence, sequence.issued, stop))
        for position, slot in zip(range(sequence.issued, stop), slots, strict=True):
            self._content[slot] = player.taint(position)
        player.slots[sequence.issued :] = slots
        sequence.issued = sequence.valid = stop
        if stop <= len(sequence.place.tokens):
            self.slab.share_prefix(sequence, stop)
        self.counts["rows"] += 1

    def end(self) -> None:
        """A sequence ends, or is preempted."""
        if (player := self._any()) is not None:
            self._leave(player, preempted=self._dice.randint(0, 1) == 1)

    def look(self) -> None:
        """All that the slab says of a sequence is what the engine was told."""
        if (player := self._any()) is None:
            return
        self._read(player)
        answered = player.sequence.valid
        if _slots(self.slab.extents(player.sequence, 0, answered)) != player.slots:
            raise AssertionError(f"the slots of {player.sequence.name} moved while it ran")

    def aside(self) -> None:
        """Room is reserved for a sequence that comes from elsewhere, or given back."""
        if self._reserved and self._dice.randint(0, 1):
            self.slab.slot_table.release(self._reserved.pop()[0])
            return
        self._numbers += 1
        count = self._dice.randint(1, 40)
        if len(self._reserved) < 3 and self.slab.reserve(-self._numbers, count):
            self._reserved.append((-self._numbers, count))
            for slot in _slots(self.slab.slot_table.residency(-self._numbers).extents):
                self._content[slot] = ("elsewhere", 0)

    def check(self) -> None:
        """Table and tree are whole, and each sequence still has its own."""
        self.slab.check_integrity()
        for player in self.players:
            self._read(player)

    def _text(self) -> list[int]:
        choice = self._dice.randint(0, len(STEMS) + 3)
        known = list(STEMS[choice]) if choice < len(STEMS) else []
        if not known and (player := self._any()) is not None:
            known = player.sequence.tokens[: self._dice.randint(1, 120)]
        return [*known, *(self._dice.randint(1, 3) for _ in range(self._dice.randint(1, 20)))]

    def _any(self) -> ModelSequence | None:
        return self.players[self._dice.randint(0, len(self.players) - 1)] if self.players else None

    def _leave(self, player: ModelSequence, preempted: bool) -> None:
        self.players.remove(player)
        self.counts["preempted" if preempted else "ended"] += 1
        self._read(player)
        self.slab.release_to_prefix_cache(player.sequence)

    def _read(self, player: ModelSequence) -> None:
        for position, slot in enumerate(player.slots):
            self.counts["reads"] += 1
            if self._content[slot] != player.taint(position):
                found = self._content[slot]
                raise ForeignRead(f"{player.sequence.name}: slot {slot} of token {position} holds {found}")


def _absorb(digest: int, token: int) -> int:
    return (digest * 6364136223846793005 + token * 2 + 1442695040888963407) & ((1 << 61) - 1)


def _digests(tokens: list[int]) -> list[int]:
    found, digest = [], 0
    for token in tokens:
        digest = _absorb(digest, token)
        found.append(digest)
    return found


def _slots(extents: list[Extent]) -> list[int]:
    return [slot for first, length in extents for slot in range(first, first + length)]


def run(operations: int, slots: int, seed: int) -> dict[str, int]:
    """The counts after so many operations.

    Raises:
        AssertionError: a sequence read what is not its own, or the slab contradicts itself.
    """
    stage = IsolationModel(slots, random.Random(seed))
    for operation in range(operations):
        stage.turn()
        if operation % CHECK_EVERY == 0:
            stage.check()
    stage.check()
    return {"operations": operations, "seed": seed, **dict(sorted(stage.counts.items()))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--slots", type=int, default=512)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    started_s = time.perf_counter()
    counts = run(options.operations, options.slots, options.seed)
    if options.json:
        print(json.dumps(counts))
        return
    print(f"0 foreign reads in {options.operations} operations ({time.perf_counter() - started_s:.0f} s)")
    for name, count in counts.items():
        print(f"  {name:16} {count:12}")


if __name__ == "__main__":
    main()
