"""Which granule of the arena serves what, written down in the arena itself, so that the next engine maps the same.

Two records take turns. A change writes the whole new record over the older one, its checksum last: an engine that is
killed between any two writes leaves at least one whole record, and the newest whole one is in force. Knows no mapping,
no tensor and no process.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

Granules = NDArray[np.int64]
"""Numbers of granules, `[count]`, in the order in which a range maps them."""

MAGIC = b"dunlinAR"
VERSION = 1
DIGEST_BYTES = 16
NO_DIGEST = bytes(DIGEST_BYTES)
_READ_ATTEMPTS = 8
_PAGE_BYTES = 4096
_SUPERBLOCK = struct.Struct("<8sIIQ16sQ")  # magic, version, layers, granules, plan, arena
_CHECKSUM = struct.Struct("<Q")
_RECORD = struct.Struct("<QQQ")  # sequence, bytes of the body, checksum
_STATE = struct.Struct("<qI?3x16s16s")  # layout, phase, outer loaded, outer digest, checkpoint
_LAYER = struct.Struct("<B3xI16s")  # flags, granules of KV retained, digest
_HELD, _COMING, _LOADED = 1, 2, 4
_RUN = np.dtype([("kind", "<u4"), ("layer", "<u4"), ("index", "<u4"), ("first", "<u4"), ("count", "<u4")])


class RangeKind(IntEnum):
    """What a granule serves."""

    FREE = 0
    OUTER = 1
    WEIGHTS = 2
    KV = 3


class RangeKey(NamedTuple):
    """One range of addresses; `layer` is 0 for the outer weights."""

    kind: RangeKind
    layer: int = 0


OUTER = RangeKey(RangeKind.OUTER)


def weights_of(layer: int) -> RangeKey:
    """The range of one layer's weights."""
    return RangeKey(RangeKind.WEIGHTS, layer)


def kv_of(layer: int) -> RangeKey:
    """The range of one layer's KV."""
    return RangeKey(RangeKind.KV, layer)


class LedgerPhase(IntEnum):
    """The change of layers that is under way.

    DROPPED: weights were dropped, the KV of their layers is retained until it is released. LOADING: granules were
    assigned to coming layers, whose weights are not all valid.
    """

    SETTLED = 0
    DROPPED = 1
    LOADING = 2


class LedgerError(Exception):
    """A record that contradicts itself; the text says how."""


@dataclass(frozen=True, slots=True)
class LayerState:
    """One layer. `held`: steps compute it. `coming`: it will be held when the change under way is committed.
    `loaded`: its weights' granules hold its weights, of `digest`. `retained`: granules of KV that stay valid although
    the layer is not held.
    """

    held: bool = False
    coming: bool = False
    loaded: bool = False
    retained: int = 0
    digest: bytes = NO_DIGEST


@dataclass(frozen=True, slots=True, eq=False)
class LedgerRecord:
    """A whole state of the arena.

    `layout` is the version of the layers held, `checkpoint` names the files that the digests were computed from.
    `ranges` has the granules of each range that has any, in order; granules in no range are free.
    """

    layout: int
    phase: LedgerPhase
    layers: tuple[LayerState, ...]
    ranges: Mapping[RangeKey, Granules]
    outer_loaded: bool = False
    outer_digest: bytes = NO_DIGEST
    checkpoint: bytes = NO_DIGEST

    @property
    def held(self) -> tuple[int, ...]:
        """The layers that steps compute, ascending."""
        return tuple(layer for layer, state in enumerate(self.layers) if state.held)

    @property
    def coming(self) -> tuple[int, ...]:
        """The layers to be held when the change under way is committed, ascending."""
        return tuple(layer for layer, state in enumerate(self.layers) if state.coming)

    @property
    def retained(self) -> tuple[int, ...]:
        """The layers that are not held, but whose KV is valid, ascending."""
        return tuple(layer for layer, state in enumerate(self.layers) if state.retained)

    def granules(self, key: RangeKey) -> Granules:
        """The granules of one range, in order; empty if it has none."""
        return self.ranges.get(key, _NONE)

    def with_layer(self, layer: int, **changed: Any) -> "LedgerRecord":
        """The same with fields of one layer changed."""
        layers = list(self.layers)
        layers[layer] = replace(layers[layer], **changed)
        return replace(self, layers=tuple(layers))


_NONE: Granules = np.empty(0, dtype=np.int64)


def check_record(record: LedgerRecord, granules: int) -> None:
    """No granule is in two places or out of the arena; what is said to be loaded or retained has its granules.

    :raises LedgerError: one of these is broken.
    """
    runs = np.sort(_runs(record), order="first")
    ends = runs["first"].astype(np.int64) + runs["count"]
    if len(runs) and int(ends.max()) > granules:
        raise LedgerError(f"granule {int(ends.max()) - 1} is outside the {granules} of the arena")
    twice = np.flatnonzero(ends[:-1] > runs["first"][1:])
    if len(twice):
        raise LedgerError(f"granule {int(runs['first'][twice[0] + 1])} is in two places")
    if record.outer_loaded and not len(record.granules(OUTER)):
        raise LedgerError("the outer weights are loaded and have no granules")
    for layer, state in enumerate(record.layers):
        if (state.held or state.loaded) and not len(record.granules(weights_of(layer))):
            raise LedgerError(f"layer {layer} is held or loaded and has no granules for weights")
        if state.held and not len(record.granules(kv_of(layer))):
            raise LedgerError(f"layer {layer} is held and has no granules for KV")
        if state.retained > len(record.granules(kv_of(layer))) or (state.retained and state.held):
            raise LedgerError(f"layer {layer} retains {state.retained} granules of KV that it has not")


def encode_record(record: LedgerRecord, granules: int) -> bytes:
    """The record as bytes: the state, the layers, then the granules in runs (range kind, layer, index in the range,
    first granule, count), so that what is written is small however large the arena is.

    :raises LedgerError: it contradicts itself.
    """
    check_record(record, granules)
    state = _STATE.pack(record.layout, record.phase, record.outer_loaded, record.outer_digest, record.checkpoint)
    return state + b"".join(_encode_layer(layer) for layer in record.layers) + _runs(record).tobytes()


def decode_record(body: bytes, layers: int, granules: int) -> LedgerRecord:
    """:raises LedgerError: the bytes are no record of that many layers and granules."""
    states_end = _STATE.size + layers * _LAYER.size
    if len(body) < states_end or (len(body) - states_end) % _RUN.itemsize:
        raise LedgerError(f"{len(body)} bytes are no record of {layers} layers")
    layout, phase, outer_loaded, outer_digest, checkpoint = _STATE.unpack_from(body)
    states = tuple(_decode_layer(*fields) for fields in _LAYER.iter_unpack(body[_STATE.size : states_end]))
    ranges = _ranges(np.frombuffer(body, dtype=_RUN, offset=states_end))
    record = LedgerRecord(layout, LedgerPhase(phase), states, ranges, outer_loaded, outer_digest, checkpoint)
    check_record(record, granules)
    return record


def _encode_layer(state: LayerState) -> bytes:
    flags = _HELD * state.held | _COMING * state.coming | _LOADED * state.loaded
    return _LAYER.pack(flags, state.retained, state.digest)


def _decode_layer(flags: int, retained: int, digest: bytes) -> LayerState:
    return LayerState(bool(flags & _HELD), bool(flags & _COMING), bool(flags & _LOADED), retained, digest)


def _runs(record: LedgerRecord) -> NDArray[np.void]:
    """Consecutive granules of each range as one entry, range by range."""
    parts = [np.empty(0, dtype=_RUN)]
    for key, granules in record.ranges.items():
        starts = np.flatnonzero(np.diff(granules, prepend=granules[:1] - 2) != 1)
        runs = np.empty(len(starts), dtype=_RUN)
        runs["kind"], runs["layer"], runs["index"] = key.kind, key.layer, starts
        runs["first"], runs["count"] = granules[starts], np.diff(starts, append=len(granules))
        parts.append(runs)
    return np.concatenate(parts)


def _ranges(runs: NDArray[np.void]) -> dict[RangeKey, Granules]:
    """Each range's granules by index. :raises LedgerError: a range has a gap."""
    parts: dict[RangeKey, list[Granules]] = {}
    for kind, layer, index, first, count in np.sort(runs, order=["kind", "layer", "index"]).tolist():
        held = parts.setdefault(RangeKey(RangeKind(kind), layer), [])
        if index != sum(map(len, held)):
            raise LedgerError(f"range kind {kind} of layer {layer} has a gap at {index}")
        held.append(np.arange(first, first + count, dtype=np.int64))
    return {key: np.concatenate(held) for key, held in parts.items()}


class LedgerMemory(Protocol):
    """The bytes at the start of the arena's memory file. What is written is there when the process is killed."""

    def read(self, offset: int, length: int) -> bytes: ...

    def write(self, offset: int, data: bytes) -> None: ...


def ledger_bytes(layers: int, granules: int) -> int:
    """Bytes that the ledger of an arena takes."""
    return _PAGE_BYTES + 2 * _slot_bytes(layers, granules)


def _slot_bytes(layers: int, granules: int) -> int:
    used = _RECORD.size + _most_bytes(layers, granules)
    return -(-used // _PAGE_BYTES) * _PAGE_BYTES


def _most_bytes(layers: int, granules: int) -> int:
    """A body's bytes when no two granules are consecutive. What is not written takes no memory."""
    return _STATE.size + layers * _LAYER.size + _RUN.itemsize * granules


class GranuleLedger:
    """Owns the two records. `arena` names this use of the memory: it differs after every `initialise`, so equal numbers
    mean that KV lies where it lay.
    """

    def __init__(self, memory: LedgerMemory, layers: int, granules: int, plan: bytes) -> None:
        self.arena = 0
        self.sequence = 0
        self._memory = memory
        self._layers = layers
        self._granules = granules
        self._plan = plan

    def read(self) -> LedgerRecord | None:
        """The record in force; None if there is none for this plan, so that the arena is to be initialised.

        May be called beside an engine that writes: a record that changes while it is read is read again.
        """
        for _ in range(_READ_ATTEMPTS):
            if not self._read_superblock():
                return None
            found = [each for each in (self._read_slot(0), self._read_slot(1)) if each is not None]
            if found:
                self.sequence, body = max(found)
                return self._decode(body)
        return None

    def initialise(self, record: LedgerRecord, arena: int) -> None:
        """Make `record` the first one of a new use of the memory, called `arena`. What was there counts no more."""
        self._memory.write(0, bytes(_SUPERBLOCK.size + _CHECKSUM.size))
        for slot in (0, 1):
            self._memory.write(self._offset(slot), bytes(_RECORD.size))
        self.commit(record)
        block = _SUPERBLOCK.pack(MAGIC, VERSION, self._layers, self._granules, self._plan, arena)
        self._memory.write(0, block + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(block)))
        self.arena = arena

    def commit(self, record: LedgerRecord) -> None:
        """Put `record` in force: its body first, then its number and checksum.

        :raises LedgerError: it contradicts itself; the old one stays.
        """
        body = encode_record(record, self._granules)
        following = self.sequence + 1
        offset = self._offset(following % 2)
        self._memory.write(offset + _RECORD.size, body)
        self._memory.write(offset, _RECORD.pack(following, len(body), _checksum(following, body)))
        self.sequence = following

    def _read_superblock(self) -> bool:
        block = self._memory.read(0, _SUPERBLOCK.size)
        (checksum,) = _CHECKSUM.unpack(self._memory.read(_SUPERBLOCK.size, _CHECKSUM.size))
        *shape, arena = _SUPERBLOCK.unpack(block)
        wanted = [MAGIC, VERSION, self._layers, self._granules, self._plan]
        self.arena = arena if shape == wanted and checksum == xxhash.xxh3_64_intdigest(block) else 0
        return self.arena != 0

    def _read_slot(self, slot: int) -> tuple[int, bytes] | None:
        offset = self._offset(slot)
        sequence, length, checksum = _RECORD.unpack(self._memory.read(offset, _RECORD.size))
        body = self._memory.read(offset + _RECORD.size, min(length, _most_bytes(self._layers, self._granules)))
        return (sequence, body) if sequence and checksum == _checksum(sequence, body) else None

    def _decode(self, body: bytes) -> LedgerRecord | None:
        try:
            return decode_record(body, self._layers, self._granules)
        except (LedgerError, ValueError):  # whole, but written by something that is no engine of this version
            return None

    def _offset(self, slot: int) -> int:
        return _PAGE_BYTES + slot * _slot_bytes(self._layers, self._granules)


def _checksum(sequence: int, body: bytes) -> int:
    return int(xxhash.xxh3_64_intdigest(body, seed=sequence & 0xFFFFFFFFFFFFFFFF))
