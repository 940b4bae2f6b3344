"""Layers of the modelled engine: phases in order, and the slots that dropped layers leave."""

from typing import Any

import pytest

from dunlin.effects import After, Send
from dunlin.messages.engine import Remap, RemapDone
from dunlin.messages.types import RemapPhase, i32
from simulator.engine.errors import ContractBroken
from simulator.engine.layers import LayerSet, RemapDue
from simulator.engine.model import make_engine_ready
from simulator.engine.timing import LinearTiming
from tests.simulator.engine.engine_bench import ME, Bench

ORDER = (RemapPhase.PREPARE, RemapPhase.DROP_WEIGHTS, RemapPhase.RELEASE_KV)


def test_dropped_layers_make_room_in_two_phases() -> None:
    bench = Bench(weights_bytes=4096, kv_bytes_per_token=64, quantum=16)
    half = i32(range(4))
    for number, kind in enumerate(ORDER):
        bench.tell(Remap(1, kind, half), at_s=float(number))
    done: list[RemapDone] = [message for _, message in bench.of(RemapDone)]
    assert [one.slots for one in done] == [1024, 1024 + 512, 2048 + 512]
    assert (len(done[1].layers), len(done[2].layers)) == (8, 4)


def layer_set(**changes: Any) -> LayerSet:
    timing = LinearTiming(per_move_s=0.5, move_byte_s=0.001)
    return LayerSet(ME, make_engine_ready(layers=i32(range(4)), **changes), timing, weights_bytes=1000)


def phase(layers: LayerSet, kind: RemapPhase, held: tuple[int, ...], layout: int = 1) -> tuple[float, RemapDone]:
    """Run a phase; the seconds that it took and its answer."""
    (due,) = layers.remap(0.0, Remap(layout, kind, i32(held)))
    assert isinstance(due, After)
    assert isinstance(due.message, RemapDue)
    (sent,) = layers.over(due.delay_s, due.message)
    assert isinstance(sent, Send)
    assert isinstance(sent.message, RemapDone)
    return due.delay_s, sent.message


def test_only_the_loading_of_weights_takes_time() -> None:
    layers = layer_set()
    took = [phase(layers, kind, (0, 1))[0] for kind in ORDER]
    assert took == [0.0, 0.0, 0.0]
    back = [phase(layers, kind, (0, 1, 2, 3), layout=2)[0] for kind in ORDER]
    assert back == [0.5 + 0.001 * 2000, 0.0, 0.0]


def test_layers_that_come_back_take_their_room_back() -> None:
    layers = layer_set(slots=256, quantum=16, kv_bytes_per_token=64)
    before = layers.slots
    for kind in ORDER:
        phase(layers, kind, (0, 1))
    assert layers.slots == (256 * 64 + 2 * 1000) // 32 // 16 * 16 == 560
    for kind in ORDER:
        _, done = phase(layers, kind, (0, 1, 2, 3), layout=2)
    assert (layers.slots, list(done.layers)) == (before, [0, 1, 2, 3])


def test_an_aborted_change_leaves_everything_as_it_was() -> None:
    layers = layer_set()
    phase(layers, RemapPhase.PREPARE, (0, 1))
    _, done = phase(layers, RemapPhase.ABORT, (0, 1))
    assert (done.phase, list(done.layers), done.slots) == (RemapPhase.ABORT, [0, 1, 2, 3], 256)
    assert phase(layers, RemapPhase.PREPARE, (2, 3), layout=2)[1].layout == 2


@pytest.mark.parametrize(
    ("done", "message"),
    [
        ((), Remap(1, RemapPhase.ABORT, i32([0]))),
        ((), Remap(1, RemapPhase.DROP_WEIGHTS, i32([0]))),
        ((), Remap(1, RemapPhase.PREPARE, i32())),
        (ORDER[:1], Remap(2, RemapPhase.PREPARE, i32([0]))),
        (ORDER[:1], Remap(2, RemapPhase.DROP_WEIGHTS, i32([0]))),
        (ORDER[:1], Remap(1, RemapPhase.RELEASE_KV, i32([0]))),
        (ORDER[:2], Remap(1, RemapPhase.ABORT, i32([0]))),
    ],
)
def test_a_phase_out_of_order_is_a_breach(done: tuple[RemapPhase, ...], message: Remap) -> None:
    layers = layer_set()
    for kind in done:
        phase(layers, kind, (0, 1))
    with pytest.raises(ContractBroken, match=f"layout {message.layout}: {message.phase.name} after"):
        layers.remap(0.0, message)
