"""An audit of the KV cache: it detects every misuse of a slot.

Each slot holds a digest of all tokens up to the one whose KV it stands for. A row first reads all slots of its
sequence, so the audit detects a slot that was reused too early, restored wrongly, or shared between tenants.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from simulator.engine.errors import ContractBroken
from simulator.engine.layered_slab import LayeredSlab
from simulator.engine.token_model import digest_of, extend_digest

Layers = frozenset[int] | None
TORN = -2
"""The content of a slot that an engine was writing when it died."""
GARBAGE = -1
"""The content of every slot after a wild write of an engine."""
LEFT = -16
"""LEFT − n is the content of the slots of a row of sequence n that left its step: some layers of them are written."""


class KvAudit(Protocol):
    """What a modelled engine reports of its use of slots. Every method may raise ContractBroken."""

    def opened(self, number: int, tokens: Iterable[int], slots: list[int], adapter: str = "") -> None:
        """A sequence was opened; `slots` hold the KV of its first tokens, computed with `adapter` ("": with none)."""
        ...

    def closed(self, number: int) -> None:
        """The sequence was closed."""
        ...

    def computed(
        self, number: int, start: int, stop: int, slots: list[int], layers: Layers = None, is_split: bool = False
    ) -> None:
        """A row wrote the KV of tokens [start, stop) into `slots`, after it read the KV of all tokens before, in
        `layers` (None: those held). Tokens that lie elsewhere (slot -1) it reads only where it `is_split`.
        """
        ...

    def elsewhere(self, number: int, stop: int) -> set[int]:
        """Those of the sequence's first `stop` tokens whose KV lies at other engines, or is not known to lie here."""
        ...

    def digests(self, number: int, positions: range) -> list[int]:
        """What the slots of these tokens of the sequence should hold."""
        ...

    def kept(
        self, number: int, covered: range, stripe: tuple[range, list[int]], regions: list[tuple[range, int]],
        is_whole: bool = True,
    ) -> None:  # fmt: skip
        """A ring's row read the KV here of tokens before `covered`, and wrote its stripe (tokens, slots) and what stays
        of `covered` (tokens, first slot): nothing that counts unless all of it `is_whole`.
        """
        ...

    def left(self, number: int, start: int, slots: list[int]) -> None:
        """A row that writes the KV of the tokens from `start` on into `slots` left its step before its end."""
        ...

    def resumed(self, number: int, slots: list[int]) -> None:
        """The sequence's row that left goes on: its `slots` must be as it left them."""
        ...

    def sampled(self, number: int, token: int) -> None:
        """The sequence's next token was sampled."""
        ...

    def copied_out(self, slots: list[int], layers: Layers = None) -> list[int]:
        """The contents of `layers` (None: all) of `slots`, which a transfer copies out."""
        ...

    def content_of(self, slots: list[int], layers: Layers = None) -> list[int]:
        """The contents of `layers` (None: all) of `slots`, whatever they are; -1 where nothing was written."""
        ...

    def copied_in(self, slots: list[int], content: list[int], layers: Layers = None) -> None:
        """A transfer wrote `content` into `layers` (None: all) of `slots`; it may be shorter than them."""
        ...

    def adopted(self, number: int, start: int, slots: list[int]) -> None:
        """`slots` hold the KV of the sequence's tokens from `start` on."""
        ...

    def engine_replaced(self, torn: list[int], trusted: bool) -> None:
        """A successor took over the KV cache; its predecessor was writing `torn`, and wrote wildly unless `trusted`."""
        ...

    def remapped(self, held: frozenset[int], retained: frozenset[int], slots: int) -> None:
        """From now on `slots` slots have KV of the layers `held`; of others only what is `retained` is there."""
        ...


@dataclass(slots=True)
class _Text:
    """A sequence: `digests[i]` covers the adapter (`root`) and tokens [0, i], `slots[i]` holds the KV of token i."""

    tenant: str
    root: int = 0
    digests: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)

    def append(self, token: int) -> None:
        self.digests.append(extend_digest(self.digests[-1] if self.digests else self.root, token))


class KvCacheAudit:
    """The content of every slot in each of `layers` layers, and its writing tenant; `tenant_of(sequence)` names a
    sequence's tenant.
    """

    def __init__(self, slots: int, tenant_of: Callable[[int], str] = lambda number: "", layers: int = 1) -> None:
        self.slab = LayeredSlab(slots, layers)
        self.tenants: list[str | None] = [None] * slots
        self._all = frozenset(range(layers))
        self._held: Layers = None
        self._tenant_of = tenant_of
        self._texts: dict[int, _Text] = {}

    def opened(self, number: int, tokens: Iterable[int], slots: list[int], adapter: str = "") -> None:
        """See `KvAudit`."""
        text = self._texts[number] = _Text(self._tenant_of(number), digest_of(adapter.encode()) if adapter else 0)
        for token in tokens:
            text.append(token)
        self._check(number, [slot for slot in slots if slot != -1])
        text.slots = slots

    def closed(self, number: int) -> None:
        """See `KvAudit`."""
        self._texts.pop(number, None)

    def computed(
        self, number: int, start: int, stop: int, slots: list[int], layers: Layers = None, is_split: bool = False
    ) -> None:
        """See `KvAudit`."""
        text, layers = self._texts[number], layers or self._held
        if is_split:  # tokens between what was known here and the row lie elsewhere from now on
            text.slots.extend([-1] * (start - len(text.slots)))
        self._read(number, text, start, layers, is_split)
        self._check(number, slots)
        del text.slots[start:]
        self.slab.write(slots, text.digests[start:stop], layers)
        for slot in slots[: stop - start]:
            self.tenants[slot] = text.tenant
        text.slots.extend(slots[: stop - start])

    def elsewhere(self, number: int, stop: int) -> set[int]:
        """See `KvAudit`."""
        slots = self._texts[number].slots
        return {at for at, slot in enumerate(slots[:stop]) if slot == -1} | set(range(len(slots), stop))

    def digests(self, number: int, positions: range) -> list[int]:
        """See `KvAudit`."""
        digests = self._texts[number].digests
        return [digests[position] for position in positions]

    def kept(
        self, number: int, covered: range, stripe: tuple[range, list[int]], regions: list[tuple[range, int]],
        is_whole: bool = True,
    ) -> None:  # fmt: skip
        """See `KvAudit`."""
        text = self._texts[number]
        text.slots.extend([-1] * (covered.start - len(text.slots)))
        self._read(number, text, covered.start, self._held, is_split=True)
        text.slots[covered.start :] = [-1] * len(covered)
        self._write(number, stripe[1], stripe[0])
        for positions, first in regions:
            slots = list(range(first, first + len(positions)))
            if is_whole:
                self._write(number, slots, positions)
            else:
                self._mark(slots, GARBAGE)
            text.slots[positions.start : positions.stop] = slots

    def left(self, number: int, start: int, slots: list[int]) -> None:
        """See `KvAudit`."""
        self._check(number, slots)
        del self._texts[number].slots[start:]
        self._mark(slots, LEFT - number)

    def resumed(self, number: int, slots: list[int]) -> None:
        """See `KvAudit`."""
        for slot, content in zip(slots, self.slab.read(slots, self._held), strict=True):
            if content != LEFT - number:
                raise ContractBroken(f"slot {slot} of a parked row of sequence {number} was written meanwhile")

    def sampled(self, number: int, token: int) -> None:
        """See `KvAudit`."""
        self._texts[number].append(token)

    def copied_out(self, slots: list[int], layers: Layers = None) -> list[int]:
        """See `KvAudit`."""
        content = [each for each in self.slab.read(slots, layers) if each is not None and each > LEFT]
        if len(content) != len(slots):
            raise ContractBroken(f"{len(slots) - len(content)} slots are copied that no row wrote")
        return content

    def content_of(self, slots: list[int], layers: Layers = None) -> list[int]:
        """See `KvAudit`."""
        return [GARBAGE if each is None else each for each in self.slab.read(slots, layers)]

    def copied_in(self, slots: list[int], content: list[int], layers: Layers = None) -> None:
        """See `KvAudit`. Regions carry no tenant, so the slots are marked as no tenant's."""
        self.slab.write(slots, content, layers)
        for slot in slots[: len(content)]:
            self.tenants[slot] = None

    def adopted(self, number: int, start: int, slots: list[int]) -> None:
        """See `KvAudit`."""
        self._texts[number].slots[start:] = slots

    def engine_replaced(self, torn: list[int], trusted: bool) -> None:
        """See `KvAudit`."""
        self._texts.clear()
        if not trusted:
            self.slab.fill(GARBAGE)
        self._mark(torn, TORN)

    def remapped(self, held: frozenset[int], retained: frozenset[int], slots: int) -> None:
        """See `KvAudit`."""
        self.slab.resize(slots)
        del self.tenants[slots:]
        self.tenants.extend([None] * (slots - len(self.tenants)))
        self._held = None if held == self._all else held
        if gone := self._all - held - retained:
            self.slab.fill(None, gone)

    def _mark(self, slots: list[int], content: int) -> None:
        """A row writes `slots`, or wrote them in part."""
        self.slab.write(slots, [content] * len(slots), self._held)

    def _write(self, number: int, slots: list[int], positions: range) -> None:
        self._check(number, slots)
        self.slab.write(slots, self.digests(number, positions), self._held)
        for slot in slots:
            self.tenants[slot] = self._texts[number].tenant

    def _read(self, number: int, text: _Text, stop: int, layers: Layers, is_split: bool = False) -> None:
        slots, digests = text.slots[:stop], text.digests[:stop]
        if is_split:
            digests = [digest for digest, slot in zip(digests, slots, strict=True) if slot != -1]
            slots = [slot for slot in slots if slot != -1]
        self._check(number, slots)
        found = self.slab.read(slots, layers)
        if found != digests:
            wrong = next(i for i in range(len(digests)) if i >= len(found) or found[i] != digests[i])
            raise ContractBroken(f"sequence {number}: the slot of token {wrong} holds another's KV")
        for tenant in {self.tenants[slot]: None for slot in slots}:
            if tenant not in (None, text.tenant):
                raise ContractBroken(f"sequence {number}: tenant {text.tenant!r} reads what {tenant!r} wrote")

    def _check(self, number: int, slots: list[int]) -> None:
        if slots and not (min(slots) >= 0 and max(slots) < len(self.slab)):
            raise ContractBroken(f"sequence {number}: slots {slots} in a slab of {len(self.slab)}")
