"""The host tier as a sequence that leaves uses it: a checkpoint of it now, ahead of all others. Decides nothing."""

from dunlin.effects import Address, Effect
from dunlin.messages.types import Figure, KeptRegion, Priority, Why
from services.instance.sequences import Sequence
from services.instance.tickets import Purpose
from services.instance.tier import HostTier


class Copies:
    """The host tier as a departure uses it."""

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
