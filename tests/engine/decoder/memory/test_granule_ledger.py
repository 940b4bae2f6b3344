"""Whatever write an engine is killed at, the next one reads the record before or the record after."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dunlin.engine.decoder.memory import granule_ledger
from dunlin.engine.decoder.memory.granule_ledger import (
    OUTER,
    GranuleLedger,
    Granules,
    LayerState,
    LedgerError,
    LedgerPhase,
    LedgerRecord,
    RangeKey,
    RangeKind,
    check_record,
    decode_record,
    encode_record,
    kv_of,
    ledger_bytes,
    weights_of,
)

LAYERS, GRANULES, PLAN = 3, 40, b"p" * 16


class Killed(BaseException):
    """The process ends here."""


class Memory:
    """Bytes that outlive a process. `left` writes are done, of the next one only the first `torn` bytes."""

    def __init__(self, size: int = ledger_bytes(LAYERS, GRANULES)) -> None:
        self.content = bytearray(size)
        self.left = 1 << 30
        self.torn = 0
        self.written = 0

    def read(self, offset: int, length: int) -> bytes:
        assert offset + length <= len(self.content)
        return bytes(self.content[offset : offset + length])

    def write(self, offset: int, data: bytes) -> None:
        assert offset + len(data) <= len(self.content)
        done = data if self.left else data[: self.torn]
        self.content[offset : offset + len(done)] = done
        if not self.left:
            raise Killed
        self.left -= 1
        self.written += 1


def ledger(memory: Memory, plan: bytes = PLAN) -> GranuleLedger:
    return GranuleLedger(memory, LAYERS, GRANULES, plan)


def key(record: LedgerRecord | None) -> bytes | None:
    return None if record is None else encode_record(record, GRANULES)


def make_record(seed: int) -> LedgerRecord:
    """A record with everything in it, that differs by seed."""
    draw = random.Random(seed)
    order = np.array(draw.sample(range(GRANULES), GRANULES))
    ranges = {OUTER: order[:3], weights_of(0): order[3:5], weights_of(2): order[5:7]}
    ranges |= {kv_of(0): order[7:20], kv_of(1): order[20:24], kv_of(2): order[24:36]}
    layers = (
        LayerState(held=True, loaded=True, digest=draw.randbytes(16)),
        LayerState(retained=draw.randrange(1, 5), digest=draw.randbytes(16)),
        LayerState(coming=True, loaded=draw.random() < 0.5, digest=draw.randbytes(16)),
    )
    return LedgerRecord(seed, LedgerPhase.LOADING, layers, ranges, True, draw.randbytes(16), draw.randbytes(16))


@given(st.integers(0, 10_000))
def test_a_record_comes_back_as_it_was(seed: int) -> None:
    record = make_record(seed)
    back = decode_record(encode_record(record, GRANULES), LAYERS, GRANULES)
    for name in ("layout", "phase", "layers", "outer_loaded", "outer_digest", "checkpoint", "held", "coming"):
        assert getattr(back, name) == getattr(record, name)
    assert (back.held, back.coming, back.retained) == ((0,), (2,), (1,))
    assert {at: granules.tolist() for at, granules in back.ranges.items()} == {
        at: granules.tolist() for at, granules in record.ranges.items()
    }


def test_an_empty_range_and_no_range_are_the_same() -> None:
    record = LedgerRecord(0, LedgerPhase.SETTLED, (LayerState(),) * LAYERS, {kv_of(1): np.array([], dtype=np.int64)})
    back = decode_record(encode_record(record, GRANULES), LAYERS, GRANULES)
    assert not back.ranges
    assert len(back.granules(kv_of(1))) == 0


def test_fresh_memory_has_no_record() -> None:
    assert ledger(Memory()).read() is None
    noise = Memory()
    noise.content[:] = random.Random(1).randbytes(len(noise.content))
    assert ledger(noise).read() is None


def test_the_last_record_is_in_force() -> None:
    memory = Memory()
    first = ledger(memory)
    first.initialise(make_record(1), 77)
    for seed in (2, 3, 4):
        assert key(ledger(memory).read()) == key(make_record(seed - 1))
        first.commit(make_record(seed))
    other = ledger(memory)
    assert key(other.read()) == key(make_record(4))
    assert (other.arena, other.sequence) == (77, 4)
    other.commit(make_record(5))
    assert key(ledger(memory).read()) == key(make_record(5))


def test_a_kill_at_any_write_leaves_the_record_before_or_after() -> None:
    size = len(encode_record(make_record(1), GRANULES))
    outcomes = set()
    for writes in range(4):
        for torn in (0, 1, 8, 15, 16, size // 2, size - 1, size):
            memory = Memory()
            ours = ledger(memory)
            ours.initialise(make_record(1), 5)
            ours.commit(make_record(2))
            memory.left, memory.torn = writes, torn
            try:
                ours.commit(make_record(3))
            except Killed:
                pass
            following = ledger(memory)
            found = key(following.read())
            assert found in (key(make_record(2)), key(make_record(3)))
            outcomes.add(found == key(make_record(3)))
            assert following.arena == 5
            memory.left = 1 << 30
            following.commit(make_record(4))
            assert key(ledger(memory).read()) == key(make_record(4)), "it can be written again"
    assert outcomes == {False, True}


@pytest.mark.parametrize("used", [False, True])
def test_a_kill_while_it_is_made_leaves_nothing_or_the_first_record(used: bool) -> None:
    """Also where there was one before, for another plan or not: it counts no more once the new one is begun."""
    found = []
    for writes in range(7):
        for torn in (0, 1, 9, 30, 1000):
            memory = Memory()
            if used:
                ledger(memory).initialise(make_record(8), 4)
                before = ledger(memory, b"q" * 16)
                before.initialise(make_record(9), 5)
                before.commit(make_record(10))
                before.commit(make_record(11))
                assert key(ledger(memory, b"q" * 16).read()) == key(make_record(11))
            memory.left, memory.torn = writes, torn
            try:
                ledger(memory).initialise(make_record(1), 6)
            except Killed:
                pass
            following = ledger(memory)
            record = key(following.read())
            assert record in (None, key(make_record(1)))
            assert (following.arena == 6) == (record is not None)
            found.append(record is not None)
            if writes:
                assert ledger(memory, b"q" * 16).read() is None
    assert False in found
    assert True in found


def test_a_changed_byte_is_noticed() -> None:
    memory = Memory()
    ours = ledger(memory)
    ours.initialise(make_record(1), 5)
    ours.commit(make_record(2))
    whole = bytes(memory.content)
    used = [at for at in range(len(whole)) if whole[at]]
    for at in [*range(48), *range(4096, 4096 + 24), *random.Random(0).sample(used, 150)]:
        memory.content[:] = whole
        memory.content[at] ^= 0x40
        following = ledger(memory)
        found = key(following.read())
        number = {None: 0, key(make_record(1)): 1, key(make_record(2)): 2}[found]
        assert (following.arena, following.sequence) == ((5, number) if number else (0, 0)), at


def test_a_ledger_for_something_else_is_none() -> None:
    memory = Memory(2 * ledger_bytes(LAYERS + 1, GRANULES + 1))
    ledger(memory).initialise(make_record(1), 5)
    assert ledger(memory, b"q" * 16).read() is None
    assert GranuleLedger(memory, LAYERS + 1, GRANULES, PLAN).read() is None
    assert GranuleLedger(memory, LAYERS, GRANULES + 1, PLAN).read() is None
    assert ledger(memory).read() is not None


class Racing(Memory):
    """Between two reads the engine that runs commits, `at_once` records."""

    def __init__(self, commits: int, at_once: int) -> None:
        super().__init__()
        self.writer: GranuleLedger | None = None
        self.commits = commits
        self.at_once = at_once
        self.seed = 1

    def read(self, offset: int, length: int) -> bytes:
        content = super().read(offset, length)
        for _ in range(min(self.at_once, self.commits) if self.writer is not None else 0):
            self.commits -= 1
            self.seed += 1
            assert self.writer is not None
            self.writer.commit(make_record(self.seed))
        return content


@pytest.mark.parametrize("at_once", [1, 2, 3])
@pytest.mark.parametrize("commits", range(12))
def test_a_reader_beside_a_writer_gets_a_whole_record(commits: int, at_once: int) -> None:
    memory = Racing(commits, at_once)
    writer = ledger(memory)
    writer.initialise(make_record(1), 5)
    memory.writer = writer
    found = key(ledger(memory).read())
    assert found in [key(make_record(seed)) for seed in range(1, memory.seed + 1)]


def test_a_record_that_contradicts_itself_is_not_written() -> None:
    memory, good = Memory(), make_record(1)
    ours = ledger(memory)
    ours.initialise(good, 5)
    written = memory.written
    with pytest.raises(LedgerError, match="in two places"):
        ours.commit(replace(good, ranges={**good.ranges, kv_of(1): good.granules(kv_of(0))}))
    assert memory.written == written
    assert ours.sequence == 1


def broken(**changed: Granules) -> LedgerRecord:
    good = make_record(1)
    return replace(good, ranges={**good.ranges, **{RangeKey(RangeKind[name], 0): at for name, at in changed.items()}})


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (broken(KV=np.array([GRANULES])), "granule 40 is outside the 40"),
        (broken(KV=np.array([-1])), "granule 4294967295 is outside the 40"),
        (broken(OUTER=np.array([], dtype=np.int64)), "the outer weights are loaded and have no granules"),
        (broken(WEIGHTS=np.array([], dtype=np.int64)), "layer 0 is held or loaded and has no granules for weights"),
        (broken(KV=np.array([], dtype=np.int64)), "layer 0 is held and has no granules for KV"),
        (make_record(1).with_layer(1, loaded=True), "layer 1 is held or loaded and has no granules for weights"),
        (make_record(1).with_layer(1, retained=5), "layer 1 retains 5 granules of KV that it has not"),
        (make_record(1).with_layer(0, retained=1), "layer 0 retains 1 granules of KV that it has not"),
    ],
)
def test_what_contradicts_itself_is_named(record: LedgerRecord, text: str) -> None:
    with pytest.raises(LedgerError, match=text):
        check_record(record, GRANULES)


def run_of(kind: int, layer: int, index: int, first: int, count: int) -> bytes:
    return np.array([kind, layer, index, first, count], dtype="<u4").tobytes()


EMPTY = encode_record(LedgerRecord(3, LedgerPhase.SETTLED, (LayerState(),) * LAYERS, {}), GRANULES)


def test_one_granule_in_two_places_is_noticed() -> None:
    for first in (0, 9):
        with pytest.raises(LedgerError, match=f"granule {first} is in two places"):
            decode_record(EMPTY + run_of(3, 1, 0, 0, 10) + run_of(3, 2, 0, first, 1), LAYERS, GRANULES)
    decode_record(EMPTY + run_of(3, 1, 0, 0, 10) + run_of(3, 2, 0, 10, 1), LAYERS, GRANULES)


def test_bytes_that_are_no_record_are_refused() -> None:
    for body in (EMPTY[:-1], EMPTY[:-20], b"", EMPTY + b"12345"):
        with pytest.raises(LedgerError, match="bytes are no record of 3 layers"):
            decode_record(body, LAYERS, GRANULES)
    with pytest.raises(LedgerError, match="granule 40 is outside the 40"):
        decode_record(EMPTY + run_of(3, 1, 0, 38, 3), LAYERS, GRANULES)
    for index in (3, 5):
        with pytest.raises(LedgerError, match=f"range kind 3 of layer 1 has a gap at {index}"):
            decode_record(EMPTY + run_of(3, 1, index, 20, 2) + run_of(3, 1, 0, 8, 4), LAYERS, GRANULES)
    good = decode_record(EMPTY + run_of(3, 1, 4, 8, 2) + run_of(3, 1, 0, 20, 4), LAYERS, GRANULES)
    assert good.granules(kv_of(1)).tolist() == [20, 21, 22, 23, 8, 9]


def test_consecutive_granules_take_no_more_bytes() -> None:
    straight = replace(make_record(1), ranges={kv_of(0): np.arange(10), weights_of(0): np.arange(10, 40)})
    straight = replace(straight, outer_loaded=False, layers=(LayerState(),) * LAYERS)
    assert len(encode_record(straight, GRANULES)) == len(EMPTY) + 2 * len(run_of(0, 0, 0, 0, 0))


def test_the_most_scattered_record_fits() -> None:
    memory = Memory()
    order = np.concatenate([np.arange(0, GRANULES, 2), np.arange(1, GRANULES, 2)])
    scattered = LedgerRecord(1, LedgerPhase.SETTLED, (LayerState(),) * LAYERS, {kv_of(1): order})
    first = ledger(memory)
    first.initialise(scattered, 5)
    first.commit(replace(scattered, layout=2))
    assert key(ledger(memory).read()) == key(replace(scattered, layout=2))
    memory.left, memory.torn = 1, 5
    with pytest.raises(Killed):
        first.commit(replace(scattered, layout=3))
    assert key(ledger(memory).read()) == key(replace(scattered, layout=2)), "the two records do not overlap"


@pytest.mark.parametrize("granules", range(180, 220))
def test_there_is_room_for_the_most_scattered_record(granules: int) -> None:
    order = np.concatenate([np.arange(0, granules, 2), np.arange(1, granules, 2)])
    record = LedgerRecord(1, LedgerPhase.SETTLED, (LayerState(),) * LAYERS, {kv_of(1): order})
    memory = Memory(ledger_bytes(LAYERS, granules))
    ours = GranuleLedger(memory, LAYERS, granules, PLAN)
    ours.initialise(record, 5)
    ours.commit(replace(record, layout=2))
    memory.left, memory.torn = 0, 1 << 20
    with pytest.raises(Killed):
        ours.commit(replace(record, layout=3))
    found = GranuleLedger(memory, LAYERS, granules, PLAN).read()
    assert found is not None
    assert found.layout == 2


def test_a_whole_record_of_an_unknown_kind_counts_as_none() -> None:
    memory = Memory()
    ledger(memory).initialise(make_record(1), 5)
    body = EMPTY + run_of(9, 0, 0, 0, 1)
    header = granule_ledger._RECORD.pack(1, len(body), granule_ledger._checksum(1, body))
    memory.write(4096 + granule_ledger._slot_bytes(LAYERS, GRANULES), header + body)
    assert ledger(memory).read() is None
