"""`Remap` as a runner answers it: beside steps, in pieces, and with steps, transfers and peers that follow."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dunlin.effects import Address
from dunlin.engine.decoder.memory.layer_layout import GRANULE_BYTES
from dunlin.messages.engine import (
    Interrupt,
    LayerSource,
    Meet,
    Met,
    RemapDone,
    StepDone,
    Transfer,
    TransferDone,
    Unsupported,
)
from dunlin.messages.types import Region, TransferKind, TransferStatus, Verdict, i32, i64
from tests.engine.build import Sequences, make_checkpoint, nothing
from tests.engine.commands import PROMPT, make_open, make_step
from tests.engine.execution.layered_runner import LayeredRunner, remap
from tests.engine.execution.remap_engine import (
    ABORT,
    ALL,
    ALONE,
    COMMIT,
    DROP_WEIGHTS,
    FEWER,
    LOAD,
    PREPARE,
    RELEASE_KV,
    in_child,
    limit_memory,
)

N = len(PROMPT)


@pytest.fixture
def engine(directory: Path) -> Iterator[LayeredRunner]:
    made = LayeredRunner(directory)
    yield made
    made.close()


@pytest.fixture
def other(directory: Path) -> Iterator[LayeredRunner]:
    made = LayeredRunner(directory, "b")
    yield made
    made.close()


def tokens(engine: LayeredRunner, first: int, sequence: int = 1, layout: int = 0, count: int = 4) -> list[int]:
    """Greedy tokens of the prompt, in slots from `first` on."""
    steps = [make_step(1, (sequence, 0, N, first), layout=layout)]
    steps += [
        make_step(at + 1, (sequence, N + at - 1, N + at, first + N + at - 1), layout=layout) for at in range(1, count)
    ]
    done = engine.run(make_open(sequence), *steps)
    assert all(isinstance(one, StepDone) for one in done), done
    return [one.token[0] for one in done]


def hidden_states(engine: LayeredRunner, room: int, sequence: int) -> Tensor:
    """What the prompt's first step left in the room, `[N, width]`."""
    return engine.rooms.take(room, [(sequence, range(N))], torch.float32, engine.model.decoder.config.hidden)


def only_unsupported(events: list[Any]) -> Unsupported:
    (refused,) = events
    assert isinstance(refused, Unsupported), refused
    return refused


def test_half_of_the_layers_go_and_come_back_and_slots_with_them(engine: LayeredRunner) -> None:
    slots, expected = engine.slots, tokens(engine, 0)
    for phase in (PREPARE, DROP_WEIGHTS, RELEASE_KV):
        done = engine.phase(phase, FEWER, 1)
        assert isinstance(done, RemapDone)
    assert (done.layout, list(done.layers)) == (1, list(FEWER))
    assert done.slots == engine.slots > 2 * slots
    last = engine.slots - N
    partial = make_step(9, (2, 0, N, last), sample=[0], layout=1, layer_stop=2, hidden_out=7)
    (answer,) = engine.run(make_open(2), partial)
    assert (answer.step, answer.tokens_computed, list(answer.token)) == (9, N, [])
    engine.restore()
    assert engine.slots == slots
    assert tokens(engine, slots - N - 4, 3, layout=2) == expected


def test_a_pipeline_of_two_engines_that_dropped_a_half_each_gives_the_same_token(
    engine: LayeredRunner, other: LayeredRunner
) -> None:
    """Forward over the lower layers in one, over the upper ones in the other: its hidden states are what matters."""
    expected = tokens(engine, 0, count=1)
    engine.run(make_open(2), make_step(2, (2, 0, N, 50), sample=[0], layer_stop=2, hidden_out=7))
    whole = hidden_states(engine, 7, 2)
    engine.drop()
    engine.run(make_open(3), make_step(3, (3, 0, N, 100), sample=[0], layer_stop=2, hidden_out=8, layout=1))
    half = hidden_states(engine, 8, 3)
    assert half.equal(whole)
    for phase in (PREPARE, DROP_WEIGHTS, RELEASE_KV):
        other.phase(phase, (2, 3), 1)
    other.run(make_open(3))
    other.rooms.put(9, [(3, range(N))], [half])
    (done,) = other.run(make_step(4, (3, 0, N, 100), layer_start=2, hidden_in=9, layout=1))
    assert list(done.token) == expected


def test_commands_of_an_old_layout_are_refused_by_name(engine: LayeredRunner) -> None:
    engine.run(make_open(1), make_step(1, (1, 0, N, 0)))
    engine.phase(PREPARE, FEWER, 1)
    engine.tell(make_step(2, (1, N, N + 1, N)), make_step(3, (1, N, N + 1, N)))
    engine.tell(remap(DROP_WEIGHTS, FEWER))
    answers = engine.run()
    assert [type(one) for one in answers[:1]] == [StepDone], "one that could begin before was computed"
    refused = [one for one in answers if isinstance(one, Unsupported)]
    assert [(one.step, one.detail) for one in refused] == [(3, "composed for layout 0, layout 1 is in force")]
    copy = Transfer(5, TransferKind.SLAB_TO_HOST, 1, Region(0, 4, 0, N), i64([0]), i64([N]))
    assert "the layout is 1, the transfer was ordered for 0" in only_unsupported(engine.tell(copy)).detail
    missing = make_step(4, (1, N, N + 1, N), layout=1, layer_stop=4)
    assert only_unsupported(engine.tell(missing)).detail == "layers 0 to 4 are not held, but [0, 1]"


def test_kv_of_layers_that_wait_to_be_released_is_there_when_they_come_back(engine: LayeredRunner) -> None:
    expected = tokens(engine, 0, count=6)
    rows = [
        make_step(at, (2, N + at - 2 if at > 1 else 0, N + at - 1, 100 + (N + at - 2 if at > 1 else 0)))
        for at in (1, 2)
    ]
    first = [one.token[0] for one in engine.run(make_open(2), *rows)]
    for phase in (PREPARE, DROP_WEIGHTS, ABORT):
        engine.phase(phase, FEWER, 1)
    engine.restore()
    later = [make_step(at, (2, N + at - 2, N + at - 1, 100 + N + at - 2), layout=2) for at in (3, 4, 5, 6)]
    assert first + [one.token[0] for one in engine.run(*later)] == expected


def test_released_kv_is_not_taken_for_valid(engine: LayeredRunner) -> None:
    engine.run(make_open(1), make_step(1, (1, 0, N, 0)))
    engine.drop()
    engine.restore()
    refused = only_unsupported(engine.run(make_step(2, (1, N, N + 1, N), layout=2)))
    assert refused.detail == f"sequence 1: token {N} is computed, but the KV before it ends at 0"
    assert isinstance(engine.run(make_step(3, (1, 0, N + 1, 0), layout=2))[0], StepDone), "it can be computed again"


def test_kv_beyond_a_smaller_capacity_is_not_taken_for_valid(engine: LayeredRunner) -> None:
    slots = engine.slots
    engine.drop()
    engine.run(make_open(1), make_step(1, (1, 0, N, slots - 4), sample=[0], layout=1, layer_stop=2, hidden_out=1))
    engine.phase(PREPARE, ALL, 2)
    over = make_step(2, (1, N - 1, N, 0), sample=[0], layout=1, layer_stop=2, hidden_out=2)
    assert "the KV before it ends at 4" in only_unsupported(engine.run(over)).detail


def test_what_is_opened_has_no_kv_in_layers_that_are_not_here(engine: LayeredRunner) -> None:
    engine.drop()
    engine.run(make_open(1, extent_start=i64([0]), extent_length=i64([N - 1])))
    valid = engine.runner._sequences[1].valid
    assert [valid.tokens(range(layer, layer + 1)) for layer in ALL] == [N - 1, N - 1, 0, 0]


def test_a_piece_at_most_before_each_step(engine: LayeredRunner) -> None:
    """While decode steps are queued, one piece of a change is done between two of them."""
    engine.run(make_open(1), make_step(1, (1, 0, N, 0)))
    engine.tell(remap(PREPARE, FEWER))
    remapper, pieces = engine.runner.layers._remapper, []  # type: ignore[union-attr]
    advance = remapper.advance

    def counted() -> RemapDone | None:
        pieces.append(1)
        return advance()

    remapper.advance = counted  # type: ignore[method-assign]
    at = N
    while engine.runner.layers.busy:  # type: ignore[union-attr]
        engine.tell(make_step(at, (1, at, at + 1, at)))
        before = len(pieces)
        events = engine.runner.work(nothing)
        assert len(pieces) == before + 1
        assert [one.step for one in events if isinstance(one, StepDone)] == [at]
        at += 1
    assert len(pieces) > 2


def test_layers_do_not_change_while_a_step_is_in_their_midst(engine: LayeredRunner) -> None:
    engine.phase(PREPARE, FEWER, 1)
    long = [at % 500 for at in range(200)]
    engine.tell(make_open(1, long), make_step(1, (1, 0, 200, 0)))
    engine.runner.work(lambda: True)
    assert engine.runner.steps.is_running
    assert engine.tell(remap(DROP_WEIGHTS, FEWER)) == []
    events = engine.run()
    assert [type(one) for one in events] == [StepDone, RemapDone]


def test_pieces_are_done_within_a_long_step(engine: LayeredRunner) -> None:
    long = [at % 500 for at in range(200)]
    engine.tell(make_open(1, long), make_step(1, (1, 0, 200, 0)))
    engine.runner.work(lambda: True)
    engine.tell(remap(PREPARE, FEWER))
    events: list[Any] = []
    while not any(isinstance(one, RemapDone) for one in events):
        assert engine.runner.steps.is_running, "nothing that PREPARE does waits for the step's end"
        events += engine.runner.work(lambda: True)
    assert [type(one) for one in engine.run()] == [StepDone]


def test_an_abort_answers_the_phase_that_it_ends(engine: LayeredRunner) -> None:
    slots = engine.slots
    engine.tell(remap(PREPARE, FEWER))
    refused, done = engine.run(remap(ABORT, FEWER))
    assert (refused.what, refused.detail, refused.layout) == ("Remap", "PREPARE of layout 1: aborted", 1)
    assert (done.phase, list(done.layers), done.slots) == (ABORT, list(ALL), slots)
    assert "no change of layers is under way" in only_unsupported(engine.tell(remap(ABORT, FEWER))).detail


def test_layers_with_parked_rows_stay(engine: LayeredRunner) -> None:
    engine.phase(PREPARE, FEWER, 1)
    engine.tell(make_open(1), make_step(1, (1, 0, N, 0)))
    engine.runner.work(lambda: True)
    engine.run(Interrupt(Verdict.SUSPEND, ticket=1))
    assert "rows are parked" in only_unsupported(engine.tell(remap(DROP_WEIGHTS, FEWER))).detail


def test_weights_come_from_a_peer_or_shared_memory_or_the_disk(
    engine: LayeredRunner, other: LayeredRunner, tmp_path: Path
) -> None:
    expected = tokens(engine, 0)
    shared = tmp_path / "weights"
    shared.write_bytes(b"junk" * 16 + other.model.arena.layer_room(3).content.numpy().tobytes())
    engine.meet(other)
    engine.drop()
    sources = (LayerSource(2, other.address), LayerSource(3, path=str(shared), offset_bytes=64))
    engine.restore(sources=sources)
    assert tokens(engine, 0, 2, layout=2) == expected


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (LayerSource(2, Address("engine", "nobody")), "engine/nobody.* was not met"),
        (LayerSource(2, path="/nowhere"), "No such file"),
    ],
)
def test_a_source_that_is_not_there_fails_and_another_may_follow(
    engine: LayeredRunner, source: LayerSource, text: str
) -> None:
    engine.drop()
    engine.phase(PREPARE, ALL, 2)
    answers = engine.run(remap(LOAD, ALL, 2, sources=(source,)))
    assert re.search(text, only_unsupported(answers).detail)
    assert isinstance(engine.phase(LOAD, ALL, 2), RemapDone)
    assert isinstance(engine.phase(COMMIT, ALL, 2), RemapDone)


def test_a_peer_that_dropped_a_layer_is_no_source_of_it(engine: LayeredRunner, other: LayeredRunner) -> None:
    engine.meet(other)
    other.drop()
    engine.drop()
    engine.phase(PREPARE, ALL, 2)
    refused = only_unsupported(engine.run(remap(LOAD, ALL, 2, sources=(LayerSource(2, other.address),))))
    assert "does not hold the weights of layer 2" in refused.detail


def written(
    sender: LayeredRunner, to: LayeredRunner, ticket: int, first: int, layout: int, layers: int
) -> TransferDone:
    """The sender writes its sequence 1 into the peer's slots from `first` on."""
    moved = Transfer(ticket, TransferKind.SLAB_TO_PEER, 1, Region(0, layers, 0, N), i64([0]), i64([N]), peer=to.address)
    there = replace(moved, peer_extent_start=i64([first]), peer_extent_length=i64([N]), peer_layout=layout)
    (done,) = sender.run(there)
    assert isinstance(done, TransferDone)
    return done


def test_peers_write_where_slots_are_now_and_nowhere_else(engine: LayeredRunner, other: LayeredRunner) -> None:
    engine.run(make_open(1), make_step(1, (1, 0, N, 0)))
    engine.meet(other)
    slots = other.slots
    assert written(engine, other, 1, 5, 0, 4).status is TransferStatus.OK
    other.phase(PREPARE, FEWER, 1)
    other.phase(DROP_WEIGHTS, FEWER, 1)
    assert "layout is 1" in written(engine, other, 2, 5, 0, 4).detail
    assert written(engine, other, 3, slots + 1, 1, 2).status is TransferStatus.OK, "slots that were weights"
    other.phase(RELEASE_KV, FEWER, 1)
    assert "does not hold layers 0 to 4" in written(engine, other, 4, 5, 1, 4).detail
    assert written(engine, other, 5, other.slots - N, 1, 2).status is TransferStatus.OK, "slots that were retained KV"
    for layer in FEWER:
        theirs = other.model.decoder.kv[layer][other.slots - N : other.slots]
        assert theirs.equal(engine.model.decoder.kv[layer][:N])
    other.phase(PREPARE, ALL, 2)
    assert "outside the slab" in written(engine, other, 6, slots + 1, 1, 2).detail, "room for weights again"
    assert written(engine, other, 7, 5, 1, 2).status is TransferStatus.OK


def test_a_next_engine_finds_the_layers_in_force_and_their_kv(engine: LayeredRunner, directory: Path) -> None:
    def work() -> None:
        first = LayeredRunner(directory, fd=os.dup(engine.fd))
        first.run(make_open(1), make_step(1, (1, 0, N, 0)))
        first.phase(PREPARE, FEWER, 1)
        first.phase(DROP_WEIGHTS, FEWER, 1)
        os._exit(0)

    assert in_child(work) == 0
    following = LayeredRunner(directory, fd=os.dup(engine.fd))
    assert (following.model.layers, following.model.arena.record.layout) == (FEWER, 1)
    following.run(make_open(1, extent_start=i64([0]), extent_length=i64([N])))
    following.phase(ABORT, FEWER, 1)
    following.restore()
    assert isinstance(following.run(make_step(2, (1, N - 1, N, N - 1), layout=2))[0], StepDone)
    following.close()


def test_under_traffic_with_memory_for_one_arena(tmp_path: Path) -> None:
    """And 64 MB: a step between all pieces, every new slot written, layers back from disk, with equal logits."""
    directory = make_checkpoint(tmp_path, layers=4, hidden=512, intermediate=4096, heads=8, head_dim=64)
    assert in_child(lambda: _change_under_limit(directory)) == 0


def _change_under_limit(directory: Path) -> None:
    engine = LayeredRunner(directory)
    steps = Traffic(engine)
    before, slots = steps.logits(), engine.slots
    _there_and_back(engine, steps, 1)  # the checkpoint's file stays mapped from here on
    size = os.fstat(engine.fd).st_size
    assert sum(engine.model.arena.plan.weights[:2]) * GRANULE_BYTES > 0.8 * ALONE, "what moves does not fit twice"
    limit_memory(size)
    for layout in (3, 5):
        _there_and_back(engine, steps, layout)
        assert engine.slots == slots
        assert torch.equal(steps.logits(), before)
    assert os.fstat(engine.fd).st_blocks * 512 <= size


def test_layers_come_from_a_peer_process_with_memory_for_one_arena(tmp_path: Path) -> None:
    """And 64 MB: the checkpoint is gone from the disk, another process holds the layers; with equal logits."""
    directory = make_checkpoint(tmp_path, layers=4, hidden=512, intermediate=4096, heads=8, head_dim=64)
    assert in_child(lambda: _change_from_a_peer(directory)) == 0


def _change_from_a_peer(directory: Path) -> None:
    engine = LayeredRunner(directory)
    with peer_process(directory) as agent:
        peer = Address("engine", "b")
        assert engine.run(Meet(peer, agent)) == [Met(peer)]
        for path in directory.glob("*.safetensors"):
            path.unlink()
        steps = Traffic(engine)
        before, slots = steps.logits(), engine.slots
        size = os.fstat(engine.fd).st_size
        assert sum(engine.model.arena.plan.weights[:2]) * GRANULE_BYTES > 0.8 * ALONE, "what moves does not fit twice"
        limit_memory(size)
        sources = tuple(LayerSource(layer, peer) for layer in ALL if layer not in FEWER)
        for layout in (1, 3):
            _there_and_back(engine, steps, layout, sources)
            assert engine.slots == slots
            assert torch.equal(steps.logits(), before)
        assert os.fstat(engine.fd).st_blocks * 512 <= size


@contextmanager
def peer_process(directory: Path) -> Iterator[bytes]:
    """Another process with an engine of the same weights; yields what its peers need to know."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        other = LayeredRunner(directory, "b")
        os.write(writing, other.access.agent)
        os.close(writing)
        signal.pause()
    os.close(writing)
    try:
        with os.fdopen(reading, "rb") as said:
            yield said.read()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _there_and_back(
    engine: LayeredRunner, steps: "Traffic", layout: int, sources: tuple[LayerSource, ...] = ()
) -> None:
    slots = engine.slots
    for phase in (PREPARE, DROP_WEIGHTS, RELEASE_KV):
        steps.change(remap(phase, FEWER, layout))
    assert engine.slots > 2 * slots
    kv = engine.model.decoder.kv
    for layer in FEWER:
        kv[layer][: engine.slots] = (torch.arange(engine.slots) + 1000.0 * layer).view(-1, 1, 1, 1)
    for layer in FEWER:
        found = kv[layer][: engine.slots, 0, 0, 0]
        assert torch.equal(found, torch.arange(engine.slots) + 1000.0 * layer), "a granule serves one range"
    for phase in (PREPARE, LOAD, COMMIT):
        steps.change(remap(phase, ALL, layout + 1, sources=sources if phase is LOAD else ()))


class Traffic:
    """A step between any two pieces of a change: the first token of a text, over the layers held, in the last slot."""

    def __init__(self, engine: LayeredRunner) -> None:
        self._engine = engine
        self._step = 0
        engine.run(make_open(1, [7, 9], prompt_tokens=1))

    def change(self, command: Any) -> None:
        """Carry a phase out; every step between its pieces is computed."""
        engine, answers = self._engine, self._engine.tell(command)
        while engine.runner.busy:
            self._step += 1
            held = engine.model.arena.record.held
            part = {} if held == ALL else {"layer_stop": len(held), "hidden_out": 1}
            slot, layout = engine.slots - 1, engine.model.arena.record.layout
            if command.phase is PREPARE and command.layers == i32(ALL):
                slot = 0  # the core has evacuated the tail
            engine.tell(make_step(self._step, (1, 0, 1, slot), sample=[0], layout=layout, **part))
            answers += engine.runner.work(nothing)
        done = [one for one in answers if isinstance(one, RemapDone)]
        refused = [one for one in answers if isinstance(one, Unsupported)]
        assert [one.phase for one in done] == [command.phase]
        assert len(refused) <= 1, "a step that was queued when the layout changed"

    def logits(self) -> Tensor:
        slots = list(range(self._engine.slots - N, self._engine.slots))
        return Sequences(self._engine.model.decoder, {1: slots}).compute([(1, PROMPT, 0)])
