"""An audit of a slab: notices every misuse of a slot.

Each slot holds a digest of all tokens up to the one whose KV would lie there. A row reads the slots of its sequence
before it computes, so a slot that was reused too early, restored wrongly, or shared with another tenant is seen.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from simulator.engine.errors import ContractBroken
from simulator.engine.token_model import extend_digest

TORN = -2
"""What a slot holds that an engine was writing when it died."""
GARBAGE = -1
"""What every slot holds after an engine went wild."""


class KvAudit(Protocol):
    """What an engine tells whoever looks over its shoulder. Raises ContractBroken."""

    def opened(self, number: int, tokens: Iterable[int], slots: list[int]) -> None:
        """A sequence; the KV of its first tokens lies in `slots`."""
        ...

    def closed(self, number: int) -> None:
        """It is forgotten."""
        ...

    def computed(self, number: int, start: int, stop: int, slots: list[int]) -> None:
        """The KV of its tokens from `start` to `stop` was written into `slots`, after all before was read."""
        ...

    def may_have_written(self, slots: list[int]) -> None:
        """The row of a sequence that was closed meanwhile may have written these, or a part of them."""
        ...

    def sampled(self, number: int, token: int) -> None:
        """Its next token."""
        ...

    def copied_out(self, slots: list[int]) -> list[int]:
        """What a move out of `slots` carries."""
        ...

    def copied_in(self, slots: list[int], content: list[int]) -> None:
        """A move into `slots` landed, whole or not."""
        ...

    def adopted(self, number: int, start: int, slots: list[int]) -> None:
        """The KV of a sequence's tokens from `start` on lies in `slots` now."""
        ...

    def engine_replaced(self, torn: list[int], trusted: bool) -> None:
        """Another engine process works on the same slab; the one before was writing `torn`, or went wild."""
        ...


@dataclass(slots=True)
class _Text:
    """A sequence: `digests[i]` covers the tokens up to i, `slots[i]` is where the KV of token i lies."""

    tenant: str
    digests: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)

    def append(self, token: int) -> None:
        self.digests.append(extend_digest(self.digests[-1] if self.digests else 0, token))


class KvCacheAudit:
    """What every slot holds and who wrote it. `tenant_of` says whose a sequence is."""

    def __init__(self, slots: int, tenant_of: Callable[[int], str] = lambda number: "") -> None:
        self.slab: list[int | None] = [None] * slots
        self.tenants: list[str | None] = [None] * slots
        self._tenant_of = tenant_of
        self._texts: dict[int, _Text] = {}

    def opened(self, number: int, tokens: Iterable[int], slots: list[int]) -> None:
        """See `Audit`."""
        text = self._texts[number] = _Text(self._tenant_of(number))
        for token in tokens:
            text.append(token)
        self._check(number, slots)
        text.slots = slots

    def closed(self, number: int) -> None:
        """See `Audit`."""
        self._texts.pop(number, None)

    def computed(self, number: int, start: int, stop: int, slots: list[int]) -> None:
        """See `Audit`."""
        text = self._texts[number]
        self._read(number, text, start)
        self._check(number, slots)
        del text.slots[start:]
        for position, slot in zip(range(start, stop), slots, strict=False):
            self.slab[slot] = text.digests[position]
            self.tenants[slot] = text.tenant
            text.slots.append(slot)

    def may_have_written(self, slots: list[int]) -> None:
        """See `Audit`."""
        for slot in slots:
            self.slab[slot] = TORN

    def sampled(self, number: int, token: int) -> None:
        """See `Audit`."""
        self._texts[number].append(token)

    def copied_out(self, slots: list[int]) -> list[int]:
        """See `Audit`."""
        content = [digest for slot in slots if (digest := self.slab[slot]) is not None]
        if len(content) != len(slots):
            raise ContractBroken(f"{len(slots) - len(content)} slots are copied that nobody wrote")
        return content

    def copied_in(self, slots: list[int], content: list[int]) -> None:
        """See `Audit`. The tier knows requests by their keys, so what comes back is nobody's in particular."""
        for slot, digest in zip(slots, content, strict=False):
            self.slab[slot] = digest
            self.tenants[slot] = None

    def adopted(self, number: int, start: int, slots: list[int]) -> None:
        """See `Audit`."""
        self._texts[number].slots[start:] = slots

    def engine_replaced(self, torn: list[int], trusted: bool) -> None:
        """See `Audit`."""
        self._texts.clear()
        if not trusted:
            self.slab = [GARBAGE] * len(self.slab)
        for slot in torn:
            self.slab[slot] = TORN

    def _read(self, number: int, text: _Text, stop: int) -> None:
        slots = text.slots[:stop]
        if [self.slab[slot] for slot in slots] != text.digests[:stop]:
            wrong = next(i for i in range(stop) if self.slab[text.slots[i]] != text.digests[i])
            raise ContractBroken(f"sequence {number}: the slot of token {wrong} holds another's KV")
        for tenant in {self.tenants[slot]: None for slot in slots}:
            if tenant not in (None, text.tenant):
                raise ContractBroken(f"sequence {number}: tenant {text.tenant!r} reads what {tenant!r} wrote")

    def _check(self, number: int, slots: list[int]) -> None:
        if slots and not (min(slots) >= 0 and max(slots) < len(self.slab)):
            raise ContractBroken(f"sequence {number}: slots {slots} in a slab of {len(self.slab)}")
