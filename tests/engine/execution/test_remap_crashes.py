"""An engine is killed at every write of a change of layers; what its successor and a standby find."""

import faulthandler
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from dunlin.engine.decoder import numerics
from dunlin.engine.decoder.loading.loader import LoadedModel, open_loaded_model
from dunlin.engine.decoder.memory.arena import FileHeader
from tests.engine.build import Sequences
from tests.engine.execution.remap_engine import (
    ALL,
    AWAY,
    BACK,
    COMMIT,
    FEWER,
    KV_BYTES,
    LOAD,
    PREPARE,
    RELEASE_KV,
    TOKENS,
    Engine,
    in_child,
    steps_of,
    usable,
)


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
