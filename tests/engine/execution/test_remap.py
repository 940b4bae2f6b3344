"""Layers go and come back while KV stays: in any order, with aborts, failures and kills in every phase."""

import faulthandler
import os
import resource
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dunlin.engine.decoder import arena as arena_module
from dunlin.engine.decoder import numerics
from dunlin.engine.decoder.arena import FileHeader
from dunlin.engine.decoder.layer_layout import GRANULE_BYTES
from dunlin.engine.decoder.loader import LoadedModel, load_model, open_loaded_model
from dunlin.engine.decoder.weight_sources import CheckpointSource, HostSource, PeerSource, WeightSource
from dunlin.engine.execution.remap import LayerRemapper, RemapError, RemapOrder, RemapOutcome, RemapStage
from tests.engine.build import Sequences, make_checkpoint

PREPARE, DROP_WEIGHTS, RELEASE_KV, LOAD, COMMIT, ABORT = RemapStage
ALL, FEWER = (0, 1, 2, 3), (0, 1)
KV_BYTES = 4 * 4 * GRANULE_BYTES
TOKENS = [5, 17, 300, 44, 9]
ALONE = 64 << 20


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), layers=4)


class Engine:
    """A loaded model whose every slot is marked, and its remapper."""

    def __init__(self, directory: Path, fd: int | None = None) -> None:
        self.directory = directory
        self.fd = os.memfd_create("arena") if fd is None else fd
        self.model: LoadedModel = load_model(directory, "float32", KV_BYTES, numerics.fast_numerics(), self.fd)
        self.arena = self.model.arena
        self.remapper = LayerRemapper(self.arena, self.model.weights, CheckpointSource(directory))

    def begin(self, phase: RemapStage, layers: tuple[int, ...], layout: int = 1, **options: Any) -> None:
        self.remapper.begin(RemapOrder(layout, phase, layers), **options)

    def do(self, phase: RemapStage, layers: tuple[int, ...], layout: int = 1, **options: Any) -> RemapOutcome:
        self.begin(phase, layers, layout, **options)
        return self.finish()

    def finish(self) -> RemapOutcome:
        """The one answer; then everything that is left to do."""
        outcomes = []
        while self.remapper.busy:
            outcome = self.remapper.advance()
            outcomes += [outcome] if outcome is not None else []
        (only,) = outcomes
        if "DROP_WEIGHTS" not in repr(self.remapper):  # until then tails are mapped beforehand
            self.arena.check_integrity()
        return only

    def drop(self, layout: int = 1) -> None:
        for phase in (PREPARE, DROP_WEIGHTS, RELEASE_KV):
            self.do(phase, FEWER, layout)

    def mark(self, layer: int, first: int = 0) -> None:
        """Write a different number into each slot of a layer's KV, in the first and the last element."""
        count = self.arena.slots_of(layer)
        kv = self.model.decoder.kv[layer]
        kv[first:count] = (1000.0 * layer + torch.arange(first, count)).view(-1, 1, 1, 1)

    def is_marked(self, layer: int, count: int) -> bool:
        kv = self.model.decoder.kv[layer][:count]
        return torch.equal(kv, (1000.0 * layer + torch.arange(count)).view(-1, 1, 1, 1).expand_as(kv))

    def logits(self) -> Tensor:
        """With the slots at the very end of what every layer has."""
        slots = list(range(self.remapper.slots - len(TOKENS), self.remapper.slots))
        return Sequences(self.model.decoder, {1: slots}).compute([(1, TOKENS, 0)])

    def contents(self) -> dict[int, Tensor]:
        return {layer: self.arena.layer_room(layer).content.clone() for layer in self.remapper.layers}

    def close(self) -> None:
        self.arena.close()
        os.close(self.fd)


@pytest.fixture
def engine(directory: Path) -> Iterator[Engine]:
    made = Engine(directory)
    for layer in ALL:
        made.mark(layer)
    yield made
    made.close()


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

    assert engine.do(PREPARE, FEWER) == RemapOutcome(1, PREPARE, ALL, slots, engine.model.quantum)
    dropped = engine.do(DROP_WEIGHTS, FEWER)
    more = weights // 2 // 2 * engine.arena.plan.quantum
    assert dropped == RemapOutcome(1, DROP_WEIGHTS, FEWER, slots + more, engine.model.quantum)
    assert sorted(engine.model.weights.layers) == [0, 1]
    assert all(engine.is_marked(layer, slots) for layer in ALL), "also the KV that others may fetch"
    released = engine.do(RELEASE_KV, FEWER)
    assert released.slots == 2 * slots + more
    for layer in FEWER:
        engine.mark(layer, slots)
        assert engine.is_marked(layer, released.slots), "old and new slots, to the last"

    assert engine.remapper.coming_slots(ALL) == slots
    assert engine.do(PREPARE, ALL, 2) == RemapOutcome(2, PREPARE, FEWER, slots, engine.model.quantum)
    assert engine.do(LOAD, ALL, 2, **options) == RemapOutcome(2, LOAD, FEWER, slots, engine.model.quantum)
    assert engine.do(COMMIT, ALL, 2) == RemapOutcome(2, COMMIT, ALL, slots, engine.model.quantum)
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


LIMITED = {resource.RLIMIT_AS: "VmSize", resource.RLIMIT_DATA: "VmData"}


def test_under_a_limit_that_a_copy_would_break(tmp_path: Path) -> None:
    """Memory for one arena and 64 MB: half the layers go, every slot is used, they come back, with equal logits."""
    directory = make_checkpoint(tmp_path, layers=4, hidden=512, intermediate=4096, heads=8, head_dim=64)
    assert in_child(lambda: _remap_under_limit(directory)) == 0


def in_child(work: Callable[[], None]) -> int:
    """The exit code of a child process that does `work`; minus the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _remap_under_limit(directory: Path) -> None:
    engine = Engine(directory)
    before = engine.logits()
    slots = engine.remapper.slots
    there_and_back(engine, 1)  # the checkpoint's file stays mapped from here on
    size = os.fstat(engine.fd).st_size
    assert sum(engine.arena.plan.weights[:2]) * GRANULE_BYTES > 0.8 * ALONE, "what moves does not fit twice"
    for limit, name in LIMITED.items():
        most = _status_bytes(name) + ALONE
        resource.setrlimit(limit, (most, most))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    with pytest.raises(RuntimeError, match="allocate memory"):
        torch.empty(2 * ALONE, dtype=torch.uint8)
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


def _status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


WRONG_ORDERS = [
    ((), (1, DROP_WEIGHTS, FEWER), "DROP_WEIGHTS of layout 1: no change of layers is under way"),
    ((), (1, ABORT, FEWER), "ABORT of layout 1: no change of layers is under way"),
    ((), (0, PREPARE, FEWER), "PREPARE of layout 0: layout 0 is in force"),
    ((), (1, PREPARE, ()), "() are not layers of 4, ascending"),
    ((), (1, PREPARE, (1, 0)), "(1, 0) are not layers of 4"),
    ((), (1, PREPARE, (0, 4)), "(0, 4) are not layers of 4"),
    ((), (1, PREPARE, (0, 0)), "(0, 0) are not layers of 4"),
    ((), (1, PREPARE, ALL), "are neither fewer nor more than the layers held, (0, 1, 2, 3)"),
    ((PREPARE,), (2, PREPARE, FEWER), "PREPARE of layout 2: under way is RemapOrder(layout=1"),
    ((PREPARE,), (1, RELEASE_KV, FEWER), "RELEASE_KV of layout 1: the next phase is DROP_WEIGHTS"),
    ((PREPARE,), (1, LOAD, FEWER), "LOAD of layout 1: the next phase is DROP_WEIGHTS"),
    ((PREPARE,), (2, DROP_WEIGHTS, FEWER), "under way is RemapOrder(layout=1"),
    ((PREPARE,), (1, DROP_WEIGHTS, (0,)), "DROP_WEIGHTS of layout 1 and layers (0,): under way is"),
    ((PREPARE,), (2, ABORT, FEWER), "ABORT of layout 2 and layers (0, 1): under way is RemapOrder(layout=1"),
    ((PREPARE, DROP_WEIGHTS), (1, DROP_WEIGHTS, FEWER), "the next phase is RELEASE_KV"),
    ((PREPARE, DROP_WEIGHTS), (1, COMMIT, FEWER), "the next phase is RELEASE_KV"),
    ((PREPARE, DROP_WEIGHTS, RELEASE_KV), (1, RELEASE_KV, FEWER), "no change of layers is under way"),
    ((PREPARE, DROP_WEIGHTS, RELEASE_KV), (2, PREPARE, (1, 2)), "neither fewer nor more than the layers held, (0, 1)"),
    ((PREPARE, DROP_WEIGHTS, RELEASE_KV), (2, PREPARE, FEWER), "neither fewer nor more"),
]


@pytest.mark.parametrize(("done", "order", "text"), WRONG_ORDERS)
def test_an_order_out_of_turn_is_refused_and_changes_nothing(
    engine: Engine, done: tuple[RemapStage, ...], order: tuple[int, RemapStage, tuple[int, ...]], text: str
) -> None:
    for phase in done:
        engine.do(phase, FEWER)
    record, state = engine.arena.record, repr(engine.remapper)
    with pytest.raises(RemapError) as refused:
        engine.remapper.begin(RemapOrder(*order))
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


Phases = list[tuple[RemapStage, tuple[int, ...], int]]
AWAY: Phases = [(PREPARE, FEWER, 1), (DROP_WEIGHTS, FEWER, 1), (RELEASE_KV, FEWER, 1)]
BACK: Phases = [(PREPARE, ALL, 2), (LOAD, ALL, 2), (COMMIT, ALL, 2)]


def steps_of(engine: Engine, phases: Phases, **options: Any) -> Iterator[None]:
    """Carry phases out; yields between all pieces."""
    for phase, layers, layout in phases:
        engine.begin(phase, layers, layout, **(options if phase is LOAD else {}))
        yield
        while engine.remapper.busy:
            engine.remapper.advance()
            yield


def abort(engine: Engine, layout: int) -> None:
    """As a core would: it is refused where the change is over."""
    try:
        assert engine.do(ABORT, (), layout).phase is ABORT
    except RemapError:
        assert "next: PREPARE" in repr(engine.remapper)
        while engine.remapper.busy:
            engine.remapper.advance()


def count_steps(directory: Path, prepare: Callable[[Engine], None], phases: Phases) -> int:
    engine = Engine(directory)
    prepare(engine)
    count = sum(1 for _ in steps_of(engine, phases))
    engine.close()
    return count


def usable(engine: Engine, slots: int, expected: dict[tuple[int, ...], Tensor]) -> None:
    """The layers held compute; every slot of theirs can be used; KV of all that was held is still there."""
    engine.arena.check_integrity()
    assert list(engine.model.weights.layers) == list(engine.remapper.layers)
    present = [*engine.remapper.layers, *engine.arena.record.retained]
    assert all(engine.arena.slots_of(layer) >= slots for layer in present)
    written = FEWER if engine.remapper.layout == 2 else present  # those that came back are empty
    assert all(engine.is_marked(layer, slots) for layer in written)
    for layer in engine.remapper.layers:
        engine.mark(layer)
    assert torch.equal(engine.logits(), expected[engine.remapper.layers])


@pytest.fixture(scope="module")
def expected(directory: Path) -> dict[tuple[int, ...], Tensor]:
    engine = Engine(directory)
    whole = engine.logits()
    engine.drop()
    some = engine.logits()
    engine.close()
    return {ALL: whole, FEWER: some}


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
        (CheckpointSource(Path("/nowhere")), "LOAD: /nowhere: holds no model.safetensors"),
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
    assert engine.do(COMMIT, ALL, 2).layers == ALL


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


@contextmanager
def killed_at(write: int) -> Iterator[None]:
    """The process is killed before its n-th write to the ledger from now on."""
    original, count = FileHeader.write, [0]

    def counted(self: FileHeader, offset: int, data: bytes) -> None:
        if count[0] == write:
            os.kill(os.getpid(), signal.SIGKILL)
        count[0] += 1
        original(self, offset, data)

    FileHeader.write = counted  # type: ignore[method-assign]
    try:
        yield
    finally:
        FileHeader.write = original  # type: ignore[method-assign]


def run_and_kill(fd: int, directory: Path, write: int) -> bool:
    """Drop and restore in a child that is killed at its n-th write; whether it was."""

    def work() -> None:
        engine = Engine(directory, fd)
        slots = engine.remapper.slots
        for layer in ALL:
            engine.mark(layer)
        with killed_at(write):
            for _ in steps_of(engine, AWAY):
                for layer in engine.remapper.layers:  # as steps would: they use every slot that there is
                    engine.mark(layer, slots)
            for _ in steps_of(engine, BACK):
                for layer in engine.remapper.layers:
                    engine.mark(layer, slots)

    return in_child(work) == -signal.SIGKILL


def test_a_kill_at_every_write_leaves_a_usable_arena(directory: Path, expected: dict[tuple[int, ...], Tensor]) -> None:
    """The next engine maps what its predecessor had: layers, slots, KV, and weights that are whole."""
    write, found = 0, []
    while True:
        fd = os.memfd_create("arena")
        first = Engine(directory, fd)
        identity, slots = first.arena.identity, first.remapper.slots
        first.arena.close()
        was_killed = run_and_kill(fd, directory, write)
        following = Engine(directory, fd)
        assert following.arena.identity == identity
        found.append((following.remapper.layers, following.arena.record.retained, following.arena.record.phase.name))
        seen = open_loaded_model(directory, "float32", KV_BYTES, numerics.fast_numerics(), fd)
        assert seen is not None
        assert seen.arena.record.phase is following.arena.record.phase, "what was undone is undone in the ledger"
        seen.arena.close()
        usable(following, slots, expected)
        if following.arena.record.phase.name == "DROPPED":
            assert following.do(RELEASE_KV, FEWER).slots > slots
        if following.remapper.layers == FEWER:
            for phase in (PREPARE, LOAD, COMMIT):
                following.do(phase, ALL, 9)
            assert torch.equal(following.logits(), expected[ALL])
        following.close()
        write += 1
        if not was_killed:
            break
    assert write > 2 * 6
    assert set(found) == {(ALL, (), "SETTLED"), (FEWER, (2, 3), "DROPPED"), (FEWER, (), "SETTLED")}


def test_one_that_rehearses_sees_the_layers_held_and_writes_nothing(engine: Engine, directory: Path) -> None:
    engine.drop()
    expected = Sequences(engine.model.decoder, {1: list(range(5))}).compute([(1, TOKENS, 0)])
    before = os.pread(engine.fd, os.fstat(engine.fd).st_size, 0)
    seen = open_loaded_model(directory, "float32", KV_BYTES, numerics.fast_numerics(), engine.fd)
    assert seen is not None
    assert (seen.layers, seen.weights_digest) == (FEWER, engine.model.weights_digest)
    kv = [layer.new_zeros(5, *layer.shape[1:]) for layer in seen.decoder.kv]
    scratch = Sequences(seen.decoder.with_kv(kv), {1: list(range(5))})
    assert torch.equal(scratch.compute([(1, TOKENS, 0)]), expected)
    assert os.pread(engine.fd, len(before) + 1, 0) == before
    assert seen.arena.is_current()
    assert in_child(lambda: write_into(seen)) == -signal.SIGSEGV
    engine.do(PREPARE, ALL, 2)
    assert not seen.arena.is_current()
    seen.arena.close()


def write_into(model: LoadedModel) -> None:
    faulthandler.disable()
    model.weights.layers[0]["qkv"][0, 0] = 1.0


def test_every_fresh_arena_has_a_name_of_its_own(directory: Path) -> None:
    engines = [Engine(directory) for _ in range(3)]
    assert len({engine.arena.identity for engine in engines}) == 3
    for engine in engines:
        engine.close()


def test_there_is_nothing_to_rehearse_with_before_the_model_is_loaded(directory: Path) -> None:
    fd = os.memfd_create("arena")
    assert open_loaded_model(directory, "float32", KV_BYTES, numerics.fast_numerics(), fd) is None
    assert os.fstat(fd).st_size == 0
    os.close(fd)
