"""KV of an outgoing migration: into the target's slots where the engines reach each other, else by the host tier.

By the host tier the target is offered regions: within a node it restores them itself, to another one the kvstores copy
them first. Knows no stage but one: once the row has stopped, the last tokens are copied too. Does not decide how a
migration continues.
"""

from dunlin.effects import Address, Effect, Send
from dunlin.messages.group import Fill
from dunlin.messages.types import Figure, KeptRegion, Priority, Why
from services.instance.kv.host_cache import HostCacheClient
from services.instance.kv.tickets import TransferPurpose
from services.instance.migration.outgoing import MigrationStage, OutgoingMigration
from services.instance.migration.peer_copies import PeerCopies
from services.instance.sequence.sequence import Sequence


class KvExport:
    """The host tier as a migration uses it: a checkpoint of the sequence now, before all others. Decides nothing."""

    def __init__(self, host_cache: HostCacheClient) -> None:
        self._host_cache = host_cache

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
        tokens = sequence.valid - sequence.kept_tokens
        why = Why(
            "migration", "host tier", (Figure("tokens", tokens), Figure("bytes", self._host_cache.size_bytes(tokens)))
        )
        return self._host_cache.reserve_region(sequence, sequence.valid, TransferPurpose.CHECKPOINT, Priority.KV, why)

    def send_to_node(self, migration: int, sequence: Sequence, to: Address) -> list[Effect]:
        """Have what is kept of it copied to the kvstore of another node."""
        why = Why("migration", to.name, (Figure("tokens", sequence.kept_tokens),))
        return self._host_cache.send_regions(migration, sequence.public_key, to, why)

    def regions_from(self, sequence: Sequence, start: int) -> tuple[KeptRegion, ...]:
        """The committed regions that follow token `start`, in order."""
        kept = [one for one in sequence.kept if one.region.start >= start]
        if not kept or kept[0].region.start != start:
            return ()
        return tuple(KeptRegion(one.region, one.host, one.chain) for one in kept)


class KvTransfer:
    """Has KV of migrating sequences copied, and filled in at their targets."""

    def __init__(self, copies: KvExport, peer_copies: PeerCopies, tail_tokens: int) -> None:
        self._kv_export = copies
        self._peer_copies = peer_copies
        self._tail_tokens = tail_tokens

    def is_behind(self, migration: OutgoingMigration) -> bool:
        """Whether too much is missing at the target to stop the row now."""
        if not self.can_copy(migration):
            return False
        return migration.filled < migration.offered or migration.wanted_tokens - migration.filled > self._tail_tokens

    def must_keep_here(self, migration: OutgoingMigration) -> bool:
        """Whether the migration needs the KV, and no more of it can be copied."""
        missing = migration.wanted_tokens - migration.filled
        return migration.needs_kv and not self.can_copy(migration) and missing > self._tail_tokens

    def can_copy(self, migration: OutgoingMigration) -> bool:
        """Whether more KV can be filled in at the target."""
        if migration.copying_stopped:
            return False
        by_host_tier = migration.target_kvstore is not None and self._kv_export.usable
        return by_host_tier or self._peer_copies.is_open(migration)

    def transfer(self, migration: OutgoingMigration) -> list[Effect]:
        """Copy more KV out, if that is worth a region, and offer the copied regions to the target."""
        if not self.can_copy(migration):
            return []
        if self._peer_copies.is_open(migration):
            at_rest = migration.stage is MigrationStage.SWITCHING
            return self.push(migration) or self._peer_copies.copy(migration, 0 if at_rest else self._tail_tokens)
        if migration.room is not None and migration.offered and not migration.by_host_tier:
            migration.copying_stopped = True  # regions of the host tier do not begin where the copies ended
            return []
        return self._transfer_by_host_tier(migration)

    def push(self, migration: OutgoingMigration) -> list[Effect]:
        """Copy layer by layer what a step computes now, where the migration may and the engines reach each other."""
        is_wanted = migration.pushes and migration.awaits_prompt and not migration.copying_stopped
        return self._peer_copies.push(migration) if is_wanted and self._peer_copies.is_open(migration) else []

    def _transfer_by_host_tier(self, migration: OutgoingMigration) -> list[Effect]:
        sequence = migration.sequence
        effects: list[Effect] = []
        left = sequence.valid - sequence.kept_tokens
        at_rest = migration.stage is MigrationStage.SWITCHING
        if self._kv_export.is_busy(sequence):
            pass
        elif sequence.kept_tokens < migration.requested:
            migration.copying_stopped = True  # the host tier had no room, or is gone
        elif left > (0 if at_rest else self._tail_tokens):
            migration.requested = sequence.valid
            effects += self._kv_export.checkpoint_now(sequence)
        if migration.target_kvstore == self._kv_export.kvstore:
            return effects + self._fill(migration, self._kv_export.regions_from(sequence, migration.offered))
        return effects + self._send_to_node(migration)

    def _fill(self, migration: OutgoingMigration, kept: tuple[KeptRegion, ...]) -> list[Effect]:
        if not kept:
            return []
        migration.offer_by_host_tier(kept[-1].region.stop)
        return [Send(migration.target, Fill(migration.handle, migration.offered, kept, migration.target_kvstore))]

    def _send_to_node(self, migration: OutgoingMigration) -> list[Effect]:
        """Send the regions to the kvstore of the target's node, where the target claims them."""
        if migration.is_between_nodes or migration.sequence.kept_tokens <= migration.offered:
            return []
        assert migration.target_kvstore is not None
        migration.is_between_nodes = True
        return self._kv_export.send_to_node(migration.number, migration.sequence, migration.target_kvstore)
