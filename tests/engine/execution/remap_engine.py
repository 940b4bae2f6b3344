"""An engine whose layers change, marks in its KV, and the phases of a change."""

import mmap
import os
import resource
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dunlin.engine.decoder import numerics
from dunlin.engine.decoder.loading.loader import LoadedModel, load_model
from dunlin.engine.decoder.loading.weight_sources import CheckpointSource
from dunlin.engine.decoder.memory.layer_layout import GRANULE_BYTES
from dunlin.engine.execution.remap import LayerRemapper, RemapError
from dunlin.messages.engine import Remap, RemapDone
from dunlin.messages.types import RemapPhase, i32
from tests.engine.build import Sequences

PREPARE, DROP_WEIGHTS, RELEASE_KV = RemapPhase.PREPARE, RemapPhase.DROP_WEIGHTS, RemapPhase.RELEASE_KV
LOAD, COMMIT, ABORT = RemapPhase.LOAD, RemapPhase.COMMIT, RemapPhase.ABORT


ALL, FEWER = (0, 1, 2, 3), (0, 1)


KV_BYTES = 4 * 4 * GRANULE_BYTES


TOKENS = [5, 17, 300, 44, 9]


ALONE = 64 << 20


LIMITED = {resource.RLIMIT_AS: "VmSize", resource.RLIMIT_DATA: "VmData"}


def limit_memory(file_bytes: int) -> None:
    """From now on this process gets `ALONE` bytes more than it has, and files of so many bytes."""
    for limit, name in LIMITED.items():
        most = _status_bytes(name) + ALONE
        resource.setrlimit(limit, (most, most))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    with pytest.raises(OSError, match="allocate memory"):  # fresh memory: the heap may have some to spare
        mmap.mmap(-1, 2 * ALONE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


class Engine:
    """A loaded model whose every slot is marked, and its remapper."""

    def __init__(self, directory: Path, fd: int | None = None) -> None:
        self.directory = directory
        self.fd = os.memfd_create("arena") if fd is None else fd
        self.model: LoadedModel = load_model(directory, "float32", KV_BYTES, numerics.fast_numerics(), self.fd)
        self.arena = self.model.arena
        self.remapper = LayerRemapper(self.arena, self.model.weights, CheckpointSource(directory))

    def begin(self, phase: RemapPhase, layers: tuple[int, ...], layout: int = 1, **options: Any) -> None:
        self.remapper.begin(Remap(layout, phase, i32(layers)), **options)

    def do(self, phase: RemapPhase, layers: tuple[int, ...], layout: int = 1, **options: Any) -> RemapDone:
        self.begin(phase, layers, layout, **options)
        return self.finish()

    def finish(self) -> RemapDone:
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


Phases = list[tuple[RemapPhase, tuple[int, ...], int]]


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
