"""Spread sequences that may have crashed a member's engine: they run again alone, and two crashes alone are poison.

The rules are `services/instance/sequence/crash_suspects.py`'s, for exchanges. One on trial is computed by one member at
a time, so that the next crash takes one engine. Engines that crash in one exchange count as one: the first may have
taken the others with it.
"""

from dunlin.effects import Effect
from dunlin.messages.group import GuestsLost
from services.instance.group.leading.exchanges import ExchangeLedger
from services.instance.group.leading.spread import SpreadSequence
from services.instance.group.leading.spread_table import SpreadTable
from services.instance.scheduling.lifecycle import SequenceLifecycle
from services.instance.sequence import crash_suspects


class SpreadSuspects:
    """Owns the newest exchange that requests were blamed for."""

    def __init__(self, lifecycle: SequenceLifecycle, spreads: SpreadTable, ledger: ExchangeLedger) -> None:
        self._lifecycle = lifecycle
        self._spreads = spreads
        self._ledger = ledger
        self._blamed = 0

    def on_crash(self, lost: GuestsLost) -> list[Effect]:
        """A member's engine crashed in a step of these guests; those that are poison now end."""
        if lost.exchange <= self._blamed:
            return []
        self._blamed = lost.exchange
        found = [self._spreads.by_number(number) for number in lost.suspects]
        suspects = [spread for spread in found if spread is not None and spread.is_live]
        effects: list[Effect] = []
        rows = [(spread.sequence, self._stop(spread, lost.exchange)) for spread in suspects]
        # One that has ended since counts as company.
        for sequence in crash_suspects.blame_crash(rows, is_alone=len(lost.suspects) == 1):
            effects += [self._lifecycle.say_poisoned(sequence), *self._lifecycle.stop(sequence)]
        for spread in suspects:
            if spread.ring is not None:
                spread.end_ring()
        return effects

    def _stop(self, spread: SpreadSequence, exchange: int) -> int:
        """Where its row of the exchange ends; of one that is answered here already, what has been computed."""
        rows = [row for each in self._ledger.outstanding if each.number == exchange for row in each.rows]
        return next((row.stop for row in rows if row.spread is spread), spread.sequence.issued)


def on_trial(spreads: list[SpreadSequence]) -> list[SpreadSequence]:
    """Those that run alone, in their order, and are in no exchange: the next row waits until the last is past."""
    return [spread for spread in spreads if spread.sequence.trial_stop > 0 and not spread.sequence.in_steps]
