"""What of a sequence that leaves is worth copying, and what of it its target is offered.

Within a node the target restores the regions themselves; to another node the kvstores carry them first. Knows no stage
but that a row at rest has its last tokens copied too, and nothing of how a departure goes on.
"""

from dunlin.effects import Address, Effect, Send
from dunlin.messages.group import Fill
from dunlin.messages.types import Figure, KeptRegion, Priority, Why
from services.instance.departure import Departure, Stage
from services.instance.sequences import Sequence
from services.instance.tickets import Purpose
from services.instance.tier import HostTier


class Copies:
    """The host tier as a departure uses it: a checkpoint of it now, ahead of all others. Decides nothing."""

    def __init__(self, tier: HostTier) -> None:
        self._tier = tier

    @property
    def usable(self) -> bool:
        """Whether anything can be copied."""
        return self._tier.usable

    @property
    def keeper(self) -> Address | None:
        """The kvstore that has what is copied."""
        return self._tier.kvstore

    def is_busy(self, sequence: Sequence) -> bool:
        """Whether a copy of it is asked for or under way."""
        return self._tier.is_about(sequence)

    def copy(self, sequence: Sequence) -> list[Effect]:
        """Copy what is computed and not kept yet."""
        tokens = sequence.answered - sequence.kept_tokens
        why = Why("migration", "host tier", (Figure("tokens", tokens), Figure("bytes", self._tier.size_bytes(tokens))))
        return self._tier.ask(sequence, sequence.answered, Purpose.CHECKPOINT, Priority.KV, why)

    def send(self, departure: int, sequence: Sequence, to: Address) -> list[Effect]:
        """Have what is kept of it copied to the kvstore of another node."""
        why = Why("migration", to.name, (Figure("tokens", sequence.kept_tokens),))
        return self._tier.send(departure, sequence.public_key, to, why)

    def kept(self, sequence: Sequence, start: int) -> tuple[KeptRegion, ...]:
        """The committed regions that follow token `start`, in order."""
        kept = [one for one in sequence.kept if one.region.start >= start]
        if not kept or kept[0].region.start != start:
            return ()
        return tuple(KeptRegion(one.region, one.host, one.chain) for one in kept)


class Offers:
    """Has the host tier's copies of those who leave made and filled in at their targets."""

    def __init__(self, copies: Copies, tail_tokens: int) -> None:
        self._copies = copies
        self._tail_tokens = tail_tokens

    def is_far(self, departure: Departure) -> bool:
        """Whether too much is missing at the target for its row to stop now."""
        if not self.can_copy(departure):
            return False
        return departure.filled < departure.sent or departure.wanted - departure.filled > self._tail_tokens

    def is_in_vain(self, departure: Departure) -> bool:
        """Whether it is not to leave without its KV, and no more of that can be copied."""
        missing = departure.wanted - departure.filled
        return departure.needs_kv and not self.can_copy(departure) and missing > self._tail_tokens

    def can_copy(self, departure: Departure) -> bool:
        """Whether more of it can be filled in at the target."""
        return not departure.is_cut and departure.keeper is not None and self._copies.usable

    def offer(self, departure: Departure) -> list[Effect]:
        """Have more of it copied out, if that is worth a region, and offer the target what was."""
        if not self.can_copy(departure):
            return []
        sequence = departure.sequence
        effects: list[Effect] = []
        left = sequence.answered - sequence.kept_tokens
        at_rest = departure.stage is Stage.SWITCHING
        if self._copies.is_busy(sequence):
            pass
        elif sequence.kept_tokens < departure.asked:
            departure.is_cut = True  # there was no room for it, or the host tier is gone
        elif left > (0 if at_rest else self._tail_tokens):
            departure.asked = sequence.answered
            effects += self._copies.copy(sequence)
        if departure.keeper == self._copies.keeper:
            return effects + self._fill(departure, self._copies.kept(sequence, departure.sent))
        return effects + self._cross(departure)

    def _fill(self, departure: Departure, kept: tuple[KeptRegion, ...]) -> list[Effect]:
        if not kept:
            return []
        departure.sent = kept[-1].region.stop
        return [Send(departure.target, Fill(departure.handle, departure.sent, kept, departure.keeper))]

    def _cross(self, departure: Departure) -> list[Effect]:
        """To another node: its kvstore gets the regions first, and the target claims them there."""
        if departure.is_crossing or departure.sequence.kept_tokens <= departure.sent:
            return []
        assert departure.keeper is not None
        departure.is_crossing = True
        return self._copies.send(departure.number, departure.sequence, departure.keeper)
