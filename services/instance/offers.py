"""What of a sequence that leaves is worth copying, and what of it its target is offered.

Within a node the target restores the regions themselves; to another node the kvstores carry them first. Knows no stage
but that a row at rest has its last tokens copied too, and nothing of how a departure goes on.
"""

from dunlin.effects import Effect, Send
from dunlin.messages.group import Fill
from dunlin.messages.types import KeptRegion
from services.instance.copies import Copies
from services.instance.departure import Departure, Stage


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
