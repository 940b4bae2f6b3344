"""What of a sequence that leaves is worth copying, and what of it its target is offered.

Within a node the target restores the regions themselves; to another node the kvstores carry them first. Knows no stage
but that a row at rest has its last tokens copied too, and nothing of how a departure goes on.
"""

from dunlin.effects import Address, Effect, Send
from dunlin.messages.group import Fill
from dunlin.messages.types import Figure, KeptRegion, Priority, Why
from services.instance.kv.host_cache import HostCacheClient
from services.instance.kv.tickets import MovePurpose
from services.instance.migration.outgoing import MigrationStage, OutgoingMigration
from services.instance.sequence.table import Sequence


class KvExport:
    """The host tier as a departure uses it: a checkpoint of it now, ahead of all others. Decides nothing."""

    def __init__(self, tier: HostCacheClient) -> None:
        self._host_cache = tier

    @property
    def usable(self) -> bool:
        """Whether anything can be copied."""
        return self._host_cache.usable

    @property
    def kvstore(self) -> Address | None:
        """The kvstore that has what is copied."""
        return self._host_cache.kvstore

    def is_busy(self, sequence: Sequence) -> bool:
        """Whether a copy of it is asked for or under way."""
        return self._host_cache.is_busy_with(sequence)

    def checkpoint_now(self, sequence: Sequence) -> list[Effect]:
        """Copy what is computed and not kept yet."""
        tokens = sequence.confirmed - sequence.kept_tokens
        why = Why(
            "migration", "host tier", (Figure("tokens", tokens), Figure("bytes", self._host_cache.size_bytes(tokens)))
        )
        return self._host_cache.reserve_region(sequence, sequence.confirmed, MovePurpose.CHECKPOINT, Priority.KV, why)

    def send_to_node(self, departure: int, sequence: Sequence, to: Address) -> list[Effect]:
        """Have what is kept of it copied to the kvstore of another node."""
        why = Why("migration", to.name, (Figure("tokens", sequence.kept_tokens),))
        return self._host_cache.send_regions(departure, sequence.public_key, to, why)

    def regions_from(self, sequence: Sequence, start: int) -> tuple[KeptRegion, ...]:
        """The committed regions that follow token `start`, in order."""
        kept = [one for one in sequence.kept if one.region.start >= start]
        if not kept or kept[0].region.start != start:
            return ()
        return tuple(KeptRegion(one.region, one.host, one.chain) for one in kept)


class KvTransfer:
    """Has the host tier's copies of those who leave made and filled in at their targets."""

    def __init__(self, copies: KvExport, tail_tokens: int) -> None:
        self._kv_export = copies
        self._tail_tokens = tail_tokens

    def is_behind(self, departure: OutgoingMigration) -> bool:
        """Whether too much is missing at the target for its row to stop now."""
        if not self.can_copy(departure):
            return False
        return departure.filled < departure.offered or departure.wanted_tokens - departure.filled > self._tail_tokens

    def must_keep_here(self, departure: OutgoingMigration) -> bool:
        """Whether it is not to leave without its KV, and no more of that can be copied."""
        missing = departure.wanted_tokens - departure.filled
        return departure.needs_kv and not self.can_copy(departure) and missing > self._tail_tokens

    def can_copy(self, departure: OutgoingMigration) -> bool:
        """Whether more of it can be filled in at the target."""
        return not departure.copying_stopped and departure.target_kvstore is not None and self._kv_export.usable

    def transfer(self, departure: OutgoingMigration) -> list[Effect]:
        """Have more of it copied out, if that is worth a region, and offer the target what was."""
        if not self.can_copy(departure):
            return []
        sequence = departure.sequence
        effects: list[Effect] = []
        left = sequence.confirmed - sequence.kept_tokens
        at_rest = departure.stage is MigrationStage.SWITCHING
        if self._kv_export.is_busy(sequence):
            pass
        elif sequence.kept_tokens < departure.requested:
            departure.copying_stopped = True  # there was no room for it, or the host tier is gone
        elif left > (0 if at_rest else self._tail_tokens):
            departure.requested = sequence.confirmed
            effects += self._kv_export.checkpoint_now(sequence)
        if departure.target_kvstore == self._kv_export.kvstore:
            return effects + self._fill(departure, self._kv_export.regions_from(sequence, departure.offered))
        return effects + self._send_to_node(departure)

    def _fill(self, departure: OutgoingMigration, kept: tuple[KeptRegion, ...]) -> list[Effect]:
        if not kept:
            return []
        departure.offered = kept[-1].region.stop
        return [Send(departure.target, Fill(departure.handle, departure.offered, kept, departure.target_kvstore))]

    def _send_to_node(self, departure: OutgoingMigration) -> list[Effect]:
        """To another node: its kvstore gets the regions first, and the target claims them there."""
        if departure.is_between_nodes or departure.sequence.kept_tokens <= departure.offered:
            return []
        assert departure.target_kvstore is not None
        departure.is_between_nodes = True
        return self._kv_export.send_to_node(departure.number, departure.sequence, departure.target_kvstore)
