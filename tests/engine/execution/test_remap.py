"""Layers go and come back while KV stays: in any order, with aborts, failures and kills in every phase."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dunlin.engine.decoder import numerics
from dunlin.engine.decoder.loading.loader import load_model
from dunlin.engine.decoder.loading.weight_sources import CheckpointSource, HostSource, PeerSource, WeightSource
from dunlin.engine.decoder.memory import arena as arena_module
from dunlin.engine.decoder.memory.layer_layout import GRANULE_BYTES
from dunlin.engine.execution.remap import RemapError
from dunlin.messages.engine import Remap, RemapDone
from dunlin.messages.types import RemapPhase, i32
from tests.engine.build import Sequences, make_checkpoint
from tests.engine.execution.remap_engine import (
    ABORT,
    ALL,
    ALONE,
    AWAY,
    BACK,
    COMMIT,
    DROP_WEIGHTS,
    FEWER,
    KV_BYTES,
    LOAD,
    PREPARE,
    RELEASE_KV,
    TOKENS,
    Engine,
    abort,
    count_steps,
    in_child,
    limit_memory,
    steps_of,
    usable,
)


def peer(contents: dict[int, Tensor], at_once: int) -> PeerSource:
    """Delivers by `at_once` bytes, and nothing each second time that it is asked."""
    asked = [0]

    def receive(layer: int, offset: int, out: Tensor) -> int:
        asked[0] += 1
        if asked[0] % 2:
            return 0
        piece = contents[layer][offset : offset + min(at_once, len(out))]
        out[: len(piece)] = piece
        return len(piece)

    return PeerSource(receive)


SOURCES: dict[str, Callable[[Engine], dict[str, WeightSource]]] = {
    "disk": lambda engine: {},
    "host": lambda engine: {"source": HostSource(engine.contents())},
    "peer": lambda engine: {"source": peer(engine.contents(), 10_000)},
}


@pytest.mark.parametrize("source", sorted(SOURCES))
def test_layers_go_and_come_back(engine: Engine, source: str) -> None:
    before, slots = engine.logits(), engine.remapper.slots
    for layer in ALL:
        engine.mark(layer)
    options, digest = SOURCES[source](engine), engine.model.weights.digest
    kv = [layer.data_ptr() for layer in engine.model.decoder.kv]
    weights = 4 * (engine.arena.plan.weights[0])

    assert engine.do(PREPARE, FEWER) == RemapDone(1, PREPARE, i32(ALL), slots, engine.model.quantum)
    dropped = engine.do(DROP_WEIGHTS, FEWER)
    more = weights // 2 // 2 * engine.arena.plan.quantum
    assert dropped == RemapDone(1, DROP_WEIGHTS, i32(FEWER), slots + more, engine.model.quantum)
    assert sorted(engine.model.weights.layers) == [0, 1]
    assert all(engine.is_marked(layer, slots) for layer in ALL), "also the KV that others may fetch"
    released = engine.do(RELEASE_KV, FEWER)
    assert released.slots == 2 * slots + more
    for layer in FEWER:
        engine.mark(layer, slots)
        assert engine.is_marked(layer, released.slots), "old and new slots, to the last"

    assert engine.remapper.coming_slots(ALL) == slots
    assert engine.do(PREPARE, ALL, 2) == RemapDone(2, PREPARE, i32(FEWER), slots, engine.model.quantum)
    assert engine.do(LOAD, ALL, 2, **options) == RemapDone(2, LOAD, i32(FEWER), slots, engine.model.quantum)
    assert engine.do(COMMIT, ALL, 2) == RemapDone(2, COMMIT, i32(ALL), slots, engine.model.quantum)
    assert list(engine.model.weights.layers) == list(ALL), "in the order in which they are computed"
    assert all(engine.is_marked(layer, slots) for layer in FEWER)
    assert [layer.data_ptr() for layer in engine.model.decoder.kv] == kv
    assert torch.equal(engine.logits(), before)
    assert engine.model.weights.digest == digest


def test_steps_go_on_between_all_pieces(engine: Engine) -> None:
    """Of the layers held, with slots that stay: the same bits, whatever piece was done last."""
    engine.drop()
    sequences = Sequences(engine.model.decoder, {1: list(range(len(TOKENS)))})
    expected = sequences.compute([(1, TOKENS, 0)])
    for phase in (PREPARE, LOAD):
        engine.begin(phase, ALL, 2)
        while engine.remapper.busy:
            engine.remapper.advance()
            assert torch.equal(sequences.compute([(1, TOKENS, 0)]), expected)


def test_what_waits_for_bytes_says_so(engine: Engine) -> None:
    contents = engine.contents()
    engine.drop()
    engine.do(PREPARE, ALL, 2)
    engine.begin(LOAD, ALL, 2, source=peer(contents, 1 << 20))
    seen = []
    while engine.remapper.busy:
        engine.remapper.advance()
        seen.append(engine.remapper.waiting)
    assert seen[0]
    assert not seen[1]
    assert not seen[-1]


def test_under_a_limit_that_a_copy_would_break(tmp_path: Path) -> None:
    """Memory for one arena and 64 MB: half the layers go, every slot is used, they come back, with equal logits."""
    directory = make_checkpoint(tmp_path, layers=4, hidden=512, intermediate=4096, heads=8, head_dim=64)
    assert in_child(lambda: _remap_under_limit(directory)) == 0


def _remap_under_limit(directory: Path) -> None:
    engine = Engine(directory)
    before = engine.logits()
    slots = engine.remapper.slots
    there_and_back(engine, 1)  # the checkpoint's file stays mapped from here on
    size = os.fstat(engine.fd).st_size
    assert sum(engine.arena.plan.weights[:2]) * GRANULE_BYTES > 0.8 * ALONE, "what moves does not fit twice"
    limit_memory(size)
    for layout in (3, 5, 7):
        there_and_back(engine, layout)
        assert engine.remapper.slots == slots
        assert torch.equal(engine.logits(), before)
    assert os.fstat(engine.fd).st_blocks * 512 <= size


def there_and_back(engine: Engine, layout: int) -> None:
    slots = engine.remapper.slots
    engine.drop(layout)
    assert engine.remapper.slots > 2 * slots
    for layer in FEWER:
        engine.mark(layer)
    assert all(engine.is_marked(layer, engine.remapper.slots) for layer in FEWER)
    for phase in (PREPARE, LOAD, COMMIT):
        engine.do(phase, ALL, layout + 1)


WRONG_ORDERS = [
    ((), (1, DROP_WEIGHTS, FEWER), "DROP_WEIGHTS of layout 1: no change of layers is under way"),
    ((), (1, ABORT, FEWER), "ABORT of layout 1: no change of layers is under way"),
    ((), (0, PREPARE, FEWER), "PREPARE of layout 0: layout 0 is in force"),
    ((), (1, PREPARE, ()), "[] are not layers of 4, ascending"),
    ((), (1, PREPARE, (1, 0)), "[1, 0] are not layers of 4"),
    ((), (1, PREPARE, (0, 4)), "[0, 4] are not layers of 4"),
    ((), (1, PREPARE, (0, 0)), "[0, 0] are not layers of 4"),
    ((), (1, PREPARE, ALL), "are neither fewer nor more than the layers held, [0, 1, 2, 3]"),
    ((PREPARE,), (2, PREPARE, FEWER), "PREPARE of layout 2: under way is layout 1 with layers [0, 1]"),
    ((PREPARE,), (1, RELEASE_KV, FEWER), "RELEASE_KV of layout 1: the next phase is DROP_WEIGHTS"),
    ((PREPARE,), (1, LOAD, FEWER), "LOAD of layout 1: the next phase is DROP_WEIGHTS"),
    ((PREPARE,), (2, DROP_WEIGHTS, FEWER), "under way is layout 1 with layers [0, 1]"),
    ((PREPARE,), (1, DROP_WEIGHTS, (0,)), "DROP_WEIGHTS of layout 1 and layers [0]: under way is"),
    ((PREPARE,), (2, ABORT, FEWER), "ABORT of layout 2 and layers [0, 1]: under way is layout 1 with layers [0, 1]"),
    ((PREPARE, DROP_WEIGHTS), (1, DROP_WEIGHTS, FEWER), "the next phase is RELEASE_KV"),
    ((PREPARE, DROP_WEIGHTS), (1, COMMIT, FEWER), "the next phase is RELEASE_KV"),
    ((PREPARE, DROP_WEIGHTS, RELEASE_KV), (1, RELEASE_KV, FEWER), "no change of layers is under way"),
    ((PREPARE, DROP_WEIGHTS, RELEASE_KV), (2, PREPARE, (1, 2)), "neither fewer nor more than the layers held, [0, 1]"),
    ((PREPARE, DROP_WEIGHTS, RELEASE_KV), (2, PREPARE, FEWER), "neither fewer nor more"),
]


@pytest.mark.parametrize(("done", "order", "text"), WRONG_ORDERS)
def test_an_order_out_of_turn_is_refused_and_changes_nothing(
    engine: Engine, done: tuple[RemapPhase, ...], order: tuple[int, RemapPhase, tuple[int, ...]], text: str
) -> None:
    for phase in done:
        engine.do(phase, FEWER)
    record, state = engine.arena.record, repr(engine.remapper)
    with pytest.raises(RemapError) as refused:
        engine.remapper.begin(Remap(*order[:2], i32(order[2])))
    assert text in str(refused.value)
    assert engine.arena.record is record
    assert repr(engine.remapper) == state
    assert not engine.remapper.busy


def test_a_phase_that_has_not_answered_is_not_overtaken(engine: Engine) -> None:
    engine.begin(PREPARE, FEWER)
    with pytest.raises(RemapError, match="DROP_WEIGHTS of layout 1: PREPARE is under way"):
        engine.begin(DROP_WEIGHTS, FEWER)
    assert engine.finish().phase is PREPARE


def test_no_room_is_refused(directory: Path) -> None:
    """An engine that never held them all has no memory for them."""
    fd = os.memfd_create("arena")
    model = load_model(directory, "float32", KV_BYTES, numerics.fast_numerics(), fd, layers=[1])
    assert (model.layers, list(model.weights.layers)) == ((1,), [1])
    whole = load_model(directory, "float32", KV_BYTES, numerics.fast_numerics(), os.memfd_create("arena"))
    assert model.weights_digest == whole.weights_digest
    assert model.slots > 4 * whole.slots
    model.arena.close()
    os.close(fd)


def test_an_abort_between_any_two_pieces_of_a_drop(directory: Path, expected: dict[tuple[int, ...], Tensor]) -> None:
    layers_then = set()
    for at in range(count_steps(directory, lambda engine: None, AWAY)):
        engine = Engine(directory)
        slots = engine.remapper.slots
        for layer in ALL:
            engine.mark(layer)
        for index, _ in enumerate(steps_of(engine, AWAY)):
            if index == at:
                break
        abort(engine, 1)
        usable(engine, slots, expected)
        layers_then.add((engine.remapper.layers, engine.arena.record.retained))
        if engine.arena.record.retained:  # what is retained can be released later
            for phase in (PREPARE, DROP_WEIGHTS, RELEASE_KV):
                engine.do(phase, FEWER, 2)
            assert not engine.arena.record.retained
        engine.close()
    assert layers_then == {(ALL, ()), (FEWER, (2, 3)), (FEWER, ())}


def test_an_abort_between_any_two_pieces_of_the_way_back(
    directory: Path, expected: dict[tuple[int, ...], Tensor]
) -> None:
    found = set()
    for at in range(count_steps(directory, Engine.drop, BACK)):
        engine = Engine(directory)
        slots = engine.remapper.slots
        engine.drop()
        grown = engine.remapper.slots
        for layer in FEWER:
            engine.mark(layer)
        for index, _ in enumerate(steps_of(engine, BACK)):
            if index == at:
                break
        abort(engine, 2)
        usable(engine, slots, expected)
        found.add((engine.remapper.layers, engine.remapper.slots))
        engine.close()
    assert found == {(FEWER, grown), (ALL, slots)}


def test_layers_whose_kv_was_kept_come_back_with_it(engine: Engine, expected: dict[tuple[int, ...], Tensor]) -> None:
    slots = engine.remapper.slots
    engine.do(PREPARE, FEWER)
    engine.do(DROP_WEIGHTS, FEWER)
    engine.do(ABORT, FEWER)
    for phase in (PREPARE, LOAD, COMMIT):
        engine.do(phase, ALL, 2)
    assert all(engine.is_marked(layer, slots) for layer in ALL)
    usable(engine, slots, expected)


def test_weights_that_are_not_the_models_are_not_used(engine: Engine, expected: dict[tuple[int, ...], Tensor]) -> None:
    slots, good = engine.remapper.slots, engine.contents()
    engine.drop()
    engine.do(PREPARE, ALL, 2)
    bad = {**good, 3: good[3].clone()}
    bad[3][100] ^= 1
    engine.begin(LOAD, ALL, 2, source=HostSource(bad))
    with pytest.raises(RemapError, match=r"LOAD: layer 3 from host memory is [0-9a-f]{32}, not [0-9a-f]{32}"):
        engine.finish()
    with pytest.raises(RemapError, match="the next phase is LOAD"):
        engine.begin(COMMIT, ALL, 2)
    asked: list[int] = []

    class Asked(HostSource):
        def fill(self, layer: int, room: Any) -> Iterator[int]:
            asked.append(layer)
            return super().fill(layer, room)

    engine.do(LOAD, ALL, 2, source=Asked(good))
    assert asked == [3], "what was verified is kept"
    engine.do(COMMIT, ALL, 2)
    for layer in FEWER:
        engine.mark(layer)
    usable_after = engine.logits()
    assert torch.equal(usable_after, expected[ALL])
    assert engine.remapper.slots == slots


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (HostSource({2: torch.zeros(3, dtype=torch.uint8)}), "LOAD: host memory holds no .* bytes of layer 2"),
        (PeerSource(lambda layer, offset, out: len(out) + 1), "LOAD: a peer says that it delivered"),
        (PeerSource(lambda layer, offset, out: -1, "i7"), "LOAD: i7 says that it delivered -1 bytes at 0 of layer 2"),
        (CheckpointSource(Path("/nowhere")), "LOAD: /nowhere: no such directory"),
    ],
)
def test_a_source_that_fails_can_be_followed_by_another(engine: Engine, source: WeightSource, text: str) -> None:
    engine.drop()
    engine.do(PREPARE, ALL, 2)
    engine.begin(LOAD, ALL, 2, source=source)
    with pytest.raises(RemapError, match=text):
        engine.finish()
    while engine.remapper.busy:
        engine.remapper.advance()
    engine.do(LOAD, ALL, 2)
    assert engine.do(COMMIT, ALL, 2).layers == i32(ALL)


def test_a_source_that_fails_is_not_waited_for(engine: Engine) -> None:
    class Lost:
        def fill(self, layer: int, room: Any) -> Iterator[int]:
            yield 0
            raise OSError("connection reset")

    engine.drop()
    engine.do(PREPARE, ALL, 2)
    engine.begin(LOAD, ALL, 2, source=Lost())
    with pytest.raises(RemapError, match="LOAD: connection reset"):
        engine.finish()
    assert not engine.remapper.waiting


def test_an_abort_closes_the_source(engine: Engine) -> None:
    closed = []

    class Endless:
        def fill(self, layer: int, room: Any) -> Iterator[int]:
            try:
                while True:
                    yield 0
            finally:
                closed.append(layer)

    engine.drop()
    engine.do(PREPARE, ALL, 2)
    engine.begin(LOAD, ALL, 2, source=Endless())
    for _ in range(5):
        engine.remapper.advance()
    assert engine.remapper.waiting
    engine.do(ABORT, ALL, 2)
    assert closed == [2]
    assert not engine.remapper.waiting


def test_a_prepare_without_memory_ends_the_change(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    populate, left = arena_module._populate, [1]

    def scarce(at: int, size: int) -> None:
        if not left[0]:
            raise MemoryError("populating: Cannot allocate memory")
        left[0] -= 1
        populate(at, size)

    monkeypatch.setattr(arena_module, "_populate", scarce)
    engine.begin(PREPARE, FEWER)
    with pytest.raises(RemapError, match="PREPARE: populating: Cannot allocate"):
        engine.finish()
    while engine.remapper.busy:
        engine.remapper.advance()
    engine.arena.check_integrity()
    left[0] = 1 << 30
    engine.drop()
    assert engine.remapper.layers == FEWER
