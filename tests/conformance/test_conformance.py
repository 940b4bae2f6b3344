"""The real runner and its model answer the same commands alike, event by event."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dunlin.effects import Address
from dunlin.engine.decoder.loading.loader import LoadedModel
from dunlin.messages.engine import Close, Interrupt, Remap, Resume, Step, TransferDone, Unsupported
from dunlin.messages.types import GroupKind, Keep, RemapPhase, Verdict, i32, i64
from tests.conformance.comparison import comparable, is_placed
from tests.conformance.conductor import ROOM_BYTES, Conductor
from tests.conformance.sides import RunnerSide, TwinSide
from tests.engine.build import load, make_checkpoint
from tests.engine.commands import make_open, make_step

LAYERS = 3
TIER_BYTES = 64 * ROOM_BYTES
OPS = ("open", "step", "step", "step", "run", "run", "finish", "interrupt", "interrupt", "resume", "discard", "close",
       "save", "restore", "remap", "remap", "remap")  # fmt: skip


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), layers=LAYERS)


@contextmanager
def loaded_from(directory: Path) -> Iterator[LoadedModel]:
    """An engine's memory of its own: its layers change."""
    model = load(directory, deterministic=True)
    try:
        yield model
    finally:
        fd = model.arena.fd
        model.arena.close()
        os.close(fd)


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tier") / "tier"
    path.write_bytes(bytes(TIER_BYTES))
    return path


def token_bytes(loaded: LoadedModel) -> int:
    """A token's KV."""
    return sum(layer[:1].numel() * layer.element_size() for layer in loaded.decoder.kv)


class Pair:
    """Both engines, the core that commands them, and how many of their answers were compared."""

    def __init__(self, runner: RunnerSide, twin: TwinSide, token_bytes: int) -> None:
        self.core = Conductor(token_bytes, LAYERS)
        self.runner = runner
        self.twin = twin
        self._told = self._compared = 0

    def tell(self, message: Any) -> None:
        if isinstance(message, Step | Resume) and self.twin.waits and not self.runner.inside:
            self.twin.land()
        self.runner.tell(message)
        self.twin.tell(message)

    def follow(self) -> None:
        """Compare what the runner answered with what the model answers, and let the core learn it."""
        for event in self.runner.events[self._told :]:
            if isinstance(event, TransferDone):
                other = self.twin.answer_to(event)
            else:
                other = self.twin.next_event(self._compared)
                self._compared += 1
            self._told += 1
            assert not self.twin.broken, f"{event} and {self.twin.broken}"
            assert other is not None, f"{event} and nothing"
            assert comparable(other) == comparable(event)
            assert is_placed(event, LAYERS)
            assert is_placed(other, LAYERS)
            self.core.learn(event)
        assert [comparable(event) for event in self.twin.events[self._compared :]] == []

    def run(self, pieces: int) -> None:
        """Compute up to a piece of a step, or all that can be computed."""
        self.runner.advance(pieces)
        self.follow()
        if self.runner.inside:
            assert self.twin.advance_into()
            self.follow()

    def interrupt(self, *messages: Interrupt) -> None:
        """Interrupt within a step where one can pause, or where nothing can be computed."""
        for message in messages:
            self.tell(message)
        self.runner.take_interrupts()
        self.follow()

    def checksum(self, side: RunnerSide | TwinSide, ticket: int) -> int:
        if isinstance(side, TwinSide):
            return side.landed[ticket].checksum
        done = [event for event in side.events if isinstance(event, TransferDone) and event.ticket == ticket]
        return int(done[0].checksum)


def act(pair: Pair, op: str, a: int, b: int) -> None:
    """One drawn operation; nothing where it makes no sense now."""
    core, picks = pair.core, [a, b, a + b][: 1 + a % 3]
    message: Any = None
    if op == "open":
        message = core.open(8 + a % 60, 1 + b % 6, a * b)
    elif op == "step":
        message = core.compose(picks, 1 + b % 40)
    elif op == "run":
        pair.run(1 + a % 5)
    elif op == "finish":
        pair.run(1 << 30)
    elif op == "interrupt":
        interrupt(pair, a, b)
    elif op == "resume":
        message = core.resume(a)
    elif op == "discard":
        message = core.discard(picks)
    elif op == "close":
        begin_step(pair, b)
        message = core.close(a)
    elif op == "remap":
        remap(pair, a)
    elif core.is_whole:
        transfer(pair, op, a, b)
    if message is not None:
        pair.tell(message)
        pair.follow()


def begin_step(pair: Pair, pieces: int) -> None:
    """Begin the step that is first, where none is: the model begins a step when it comes, the runner when it works."""
    if not pair.runner.inside:
        pair.run(1 + pieces % 3)


def interrupt(pair: Pair, a: int, b: int) -> None:
    """One interrupt, or two before the same safepoint."""
    begin_step(pair, b)
    first = pair.core.interrupt(Verdict(a % 2), [a, b][: b % 3])
    second = [pair.core.interrupt(Verdict(b % 2), [a + b][: a % 2])] if a % 5 == 0 else []
    pair.interrupt(first, *second)


def remap(pair: Pair, a: int) -> None:
    """A phase between two steps."""
    pair.run(1 << 30)
    for message in pair.core.remap(a):
        pair.tell(message)
    pair.run(1 << 30)


def transfer(pair: Pair, op: str, a: int, b: int) -> None:
    """Save or restore a region beside whatever is under way, and perhaps cancel it, or interrupt what waits."""
    core = pair.core
    if op == "save":
        saved = core.save(a)
        if saved is not None:
            pair.tell(saved)
        cancel(pair, a, b)
    else:
        found = core.restore(a)
        if found is None:
            return
        opened, restored, source = found
        pair.tell(opened)
        for side in (pair.runner, pair.twin):
            checksum = pair.checksum(side, source) ^ (b % 4 == 0)
            host = replace(restored.host, checksum=checksum) if restored.host is not None else None
            side.tell(replace(restored, host=host))
        cancel(pair, a, b)
        if (step := core.compose([len(core.sequences) - 1], 1 + b % 40)) is not None:
            pair.tell(step)
        if b % 5 == 1 and (pair.twin.waits or pair.runner.inside):
            pair.interrupt(core.interrupt(Verdict(a % 2), []))
    pair.follow()


def cancel(pair: Pair, a: int, b: int) -> None:
    """Cancel a transfer that the model has not let land ahead, where no step could begin first that it holds up."""
    message = pair.core.cancel(a)
    is_ahead = message.ticket in pair.twin.landed and message.ticket in pair.core.landing
    if b % 5 == 2 and not is_ahead and (pair.runner.inside or not pair.twin.waits):
        pair.tell(message)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(ops=st.lists(st.tuples(st.sampled_from(OPS), st.integers(0, 99), st.integers(0, 99)), min_size=15, max_size=60))
def test_both_answer_alike(directory: Path, tier: Path, ops: list[tuple[str, int, int]]) -> None:
    with loaded_from(directory) as loaded:
        sides = RunnerSide(loaded, directory, tier, TIER_BYTES), TwinSide(loaded, TIER_BYTES)
        conduct(Pair(*sides, token_bytes(loaded)), ops)


def conduct(pair: Pair, ops: list[tuple[str, int, int]]) -> None:
    for op, a, b in [("open", 50, 3), ("open", 31, 4), ("step", 2, 39), *ops]:
        act(pair, op, a, b)
    pair.run(1 << 30)
    for number in sorted(pair.core.sequences):
        pair.tell(Close(number))
    pair.run(1 << 30)
    assert not pair.runner.runner.busy
    assert set(pair.twin.landed) <= {event.ticket for event in pair.runner.events if isinstance(event, TransferDone)}


FORBIDDEN: dict[str, tuple[Any, ...]] = {
    "a sequence is opened twice": (make_open(1),),
    "tokens that are not known": (make_step(9, (1, 10, 12, 10)),),
    "a gap before the row": (make_step(9, (2, 4, 10, 204)),),
    "a token to be sampled before the last one known": (make_step(9, (2, 0, 9, 200)),),
    "a sequence twice in one step": (make_step(9, (2, 0, 10, 200), (2, 0, 10, 300)),),
    "too few slots": (make_step(9, (2, 0, 10, 200), extent_length=i64([9])),),
    "a parked sequence": (Interrupt(Verdict.SUSPEND, ticket=9), make_step(9, (2, 0, 10, 200))),
    "a resume of what is not parked": (Resume(9, i64([2])),),
    "a resume of nothing": (Resume(9),),
    "a resume that names one twice": (Interrupt(Verdict.SUSPEND, ticket=9), Resume(9, i64([2, 2]))),
    "a row above an interrupted one": (
        Interrupt(Verdict.DISCARD, ticket=9, up_to_step=2),
        make_step(9, (2, 10, 11, 210)),
    ),
    "members of a group": (make_step(9, (1, 10, 11, 110), group=GroupKind.RING),),
    "a ring without peers": (make_step(9, (2, 0, 10, 200), group=GroupKind.RING),),
    "peers of a step that has none": (
        make_step(9, (2, 0, 10, 200), peers=(Address("engine", "b"),), own_room=i64([1]), peer_room=i64([1])),
    ),
    "keys elsewhere in a step of its own": (
        make_step(
            9, (1, 10, 11, 110), span_row=i32([0]), span_start=i64([0]), span_stop=i64([5]), span_holder=i32([0])
        ),
    ),
    "a stride outside a ring": (make_step(9, (1, 10, 11, 110), stride=i64([2])),),
    "keep outside a ring": (make_step(9, (1, 10, 11, 110), keep=Keep()),),
    "layers without the room before them": (make_step(9, (1, 10, 11, 110), layer_start=1),),
    "layers without the room after them": (make_step(9, (1, 10, 11, 110), sample=[0], layer_stop=1),),
    "hidden states that were not left": (make_step(9, (1, 10, 11, 110), layer_start=1, hidden_in=3),),
    "another layout": (make_step(9, (1, 10, 11, 110), layout=1),),
    "a phase out of order": (Remap(7, RemapPhase.LOAD, i32(range(LAYERS))),),
}


def test_stages_in_one_engine_are_answered_alike(directory: Path, tier: Path) -> None:
    """Two sequences, one decoding; a row that leaves between the stages is missing in the second."""
    with loaded_from(directory) as loaded:
        compare_stages(RunnerSide(loaded, directory, tier, TIER_BYTES), TwinSide(loaded, TIER_BYTES))


def compare_stages(runner: RunnerSide, twin: TwinSide) -> None:
    lower: dict[str, Any] = {"layer_stop": 2, "hidden_in": 5, "hidden_out": 4, "sample": [0, 0]}
    upper: dict[str, Any] = {"layer_start": 2, "hidden_in": 4, "hidden_out": 5}
    commands = [
        make_open(1),
        make_open(2),
        make_step(1, (1, 0, 10, 100), (2, 0, 4, 200), **lower),
        make_step(2, (2, 0, 4, 200), (1, 0, 10, 100), **upper, sample=[0, 1]),
        make_step(3, (1, 10, 11, 110), (2, 4, 10, 204), **lower),
        Close(2),
        make_step(4, (1, 10, 11, 110), **upper),
        make_step(5, (1, 10, 11, 110), **upper, sample=[0]),  # its hidden states were taken by step 4
    ]
    for number, message in enumerate(commands):
        runner.tell(message)
        runner.advance(1 << 30)
        twin.tell(message)
        if number < len(commands) - 1:
            for at, event in enumerate(runner.events):
                assert comparable(twin.next_event(at)) == comparable(event)
    assert isinstance(runner.events[-1], Unsupported)
    assert twin.next_event(len(runner.events) - 1) is None
    assert "has no hidden states" in twin.broken


@pytest.mark.parametrize("commands", FORBIDDEN.values(), ids=list(FORBIDDEN))
def test_what_one_refuses_the_other_refuses(directory: Path, tier: Path, commands: tuple[Any, ...]) -> None:
    """Within step 2, over sequence 2, after sequence 1 was computed; the model may take it for a breach."""
    with loaded_from(directory) as loaded:
        refuse(RunnerSide(loaded, directory, tier, TIER_BYTES), TwinSide(loaded, TIER_BYTES), commands)


def refuse(runner: RunnerSide, twin: TwinSide, commands: tuple[Any, ...]) -> None:
    for side in (runner, twin):
        for message in (make_open(1), make_open(2), make_step(1, (1, 0, 10, 100))):
            side.tell(message)
    runner.advance(1 << 30)
    twin.next_event(0)
    for side in (runner, twin):
        side.tell(make_step(2, (2, 0, 10, 200)))
    runner.advance(2)
    assert runner.inside
    assert twin.advance_into()
    for message in commands:
        runner.tell(message)
        twin.tell(message)
        runner.take_interrupts()
    runner.advance(1 << 30)
    twin.next_event(1 << 30)
    refused = [event for event in runner.events if isinstance(event, Unsupported)]
    assert len(refused) == 1
    theirs = [comparable(event) for event in twin.events if isinstance(event, Unsupported)]
    assert twin.broken or theirs == [comparable(refused[0])]
