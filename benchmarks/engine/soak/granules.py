"""The granule ledger in an engine's arena, as its parent reads it beside the engine."""

import os
from dataclasses import dataclass

from dunlin.engine.decoder.memory.granule_ledger import (
    GranuleLedger,
    LedgerError,
    LedgerRecord,
    check_record,
    weights_of,
)
from dunlin.engine.decoder.memory.layer_layout import GRANULE_BYTES, ArenaPlan


@dataclass(frozen=True, slots=True)
class LedgerFile:
    """The ledger's memory: the first bytes of an arena's file, to be read only."""

    fd: int

    def read(self, offset: int, length: int) -> bytes:
        """As `LedgerMemory`."""
        return os.pread(self.fd, length, offset)

    def write(self, offset: int, data: bytes) -> None:
        """:raises PermissionError: always."""
        raise PermissionError("a soak looks at the ledger, and writes nothing")


class ArenaView:
    """One engine's arena. The state that it is made in is the one to which it must come back."""

    def __init__(self, fd: int, plan: ArenaPlan) -> None:
        """:raises LedgerError: there is no ledger of that plan."""
        self._fd = fd
        self._plan = plan
        self._sizes = self._range_sizes(self.record())

    def record(self) -> LedgerRecord:
        """What is in force. :raises LedgerError: no whole record lies there, or it contradicts itself."""
        ledger = GranuleLedger(LedgerFile(self._fd), len(self._plan.weights), self._plan.granules, self._plan.digest)
        record = ledger.read()
        if record is None:
            raise LedgerError("there is no whole record")
        check_record(record, self._plan.granules)
        return record

    def violations(self) -> list[str]:
        """What differs from the first state, when all layers are held again. :raises LedgerError: as `record`."""
        sizes = self._range_sizes(self.record())
        if sizes == self._sizes:
            return []
        return [f"granules by range: {sizes}, first {self._sizes}"]

    def layer_weights(self, layer: int) -> bytes:
        """A layer's weights as they lie in its granules, one after the other."""
        first = os.fstat(self._fd).st_size - self._plan.granules * GRANULE_BYTES
        granules = self.record().granules(weights_of(layer)).tolist()
        return b"".join(os.pread(self._fd, GRANULE_BYTES, first + number * GRANULE_BYTES) for number in granules)

    def _range_sizes(self, record: LedgerRecord) -> dict[str, int]:
        sizes = {f"{key.kind.name} {key.layer}": len(granules) for key, granules in record.ranges.items()}
        return {**sizes, "free": self._plan.granules - sum(sizes.values())}
