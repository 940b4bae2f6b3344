"""Layers of the modelled engine: phases in order, the slots that dropped layers leave, and what a crash undoes."""

from typing import Any

import pytest

from dunlin.messages.engine import Remap, Step
from dunlin.messages.types import RemapPhase, i8, i32, i64
from simulator.engine.layers import LayerSet
from simulator.engine.model import make_engine_ready

PREPARE, DROP, RELEASE = RemapPhase.PREPARE, RemapPhase.DROP_WEIGHTS, RemapPhase.RELEASE_KV
LOAD, COMMIT, ABORT = RemapPhase.LOAD, RemapPhase.COMMIT, RemapPhase.ABORT
FEWER, MORE = (PREPARE, DROP, RELEASE), (PREPARE, LOAD, COMMIT)
HALF, ALL = (0, 1), (0, 1, 2, 3)
SLOTS, ROOM, ROOM_BESIDE = 256, 560, 304
"""Of four layers, of two, and of two beside the KV of the others: a layer's weights have 1,000 bytes, a slot 16."""


def layer_set() -> LayerSet:
    ready = make_engine_ready(layers=i32(range(4)), slots=SLOTS, quantum=16, kv_bytes_per_token=64)
    return LayerSet(ready, weights_bytes=1000)


def phases(layers: LayerSet, kinds: tuple[RemapPhase, ...], held: tuple[int, ...], layout: int = 1) -> list[int]:
    """The slots after each phase, none of which is refused."""
    slots = []
    for kind in kinds:
        message = Remap(layout, kind, i32(held))
        assert layers.begin(message) == ""
        layers.end(message)
        slots.append(layers.slots)
    return slots


def test_dropped_layers_make_room_in_two_phases() -> None:
    layers = layer_set()
    assert phases(layers, FEWER[:2], HALF) == [SLOTS, ROOM_BESIDE]
    assert (layers.held, layers.retained, layers.layout) == (HALF, {2: SLOTS, 3: SLOTS}, 1)
    assert phases(layers, FEWER[2:], HALF) == [ROOM]
    assert (layers.held, layers.retained) == (HALF, {})


def test_layers_that_come_back_take_their_room_before_they_are_loaded() -> None:
    layers = layer_set()
    phases(layers, FEWER, HALF)
    assert phases(layers, MORE[:2], ALL, layout=2) == [SLOTS, SLOTS]
    assert (layers.held, layers.layout) == (HALF, 1)
    phases(layers, MORE[2:], ALL, layout=2)
    assert (layers.held, layers.layout, layers.slots) == (ALL, 2, SLOTS)


def test_retained_kv_stays_through_an_abort_and_is_there_when_its_layers_come_back() -> None:
    layers = layer_set()
    phases(layers, (*FEWER[:2], ABORT), HALF)
    assert (layers.held, layers.retained) == (HALF, {2: SLOTS, 3: SLOTS})
    phases(layers, FEWER, HALF, layout=2)
    assert (layers.retained, layers.slots) == ({}, ROOM)


@pytest.mark.parametrize("done", [(PREPARE,), (PREPARE, LOAD)])
def test_an_aborted_load_gives_the_room_back(done: tuple[RemapPhase, ...]) -> None:
    layers = layer_set()
    phases(layers, FEWER, HALF)
    phases(layers, (*done, ABORT), ALL, layout=2)
    assert (layers.held, layers.slots, layers.layout) == (HALF, ROOM, 1)
    phases(layers, MORE, ALL, layout=2)
    assert layers.held == ALL


def test_an_abort_ends_a_phase_that_has_not_answered() -> None:
    layers = layer_set()
    phases(layers, FEWER, HALF)
    phases(layers, MORE[:1], ALL, layout=2)
    load, abort = Remap(2, LOAD, i32(ALL)), Remap(2, ABORT, i32(ALL))
    layers.begin(load)
    assert "LOAD is under way" in layers.begin(Remap(2, COMMIT, i32(ALL)))
    assert layers.is_due(load)
    layers.begin(abort)
    assert (layers.is_due(load), layers.is_due(abort)) == (False, True)


@pytest.mark.parametrize(
    ("kinds", "held", "before", "after"),
    [
        (FEWER[:1], HALF, ALL, ALL),
        (FEWER[:2], HALF, HALF, HALF),
    ],
)
def test_the_next_engine_has_what_the_crashed_one_had(
    kinds: tuple[RemapPhase, ...], held: tuple[int, ...], before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    layers = layer_set()
    phases(layers, kinds, held)
    assert layers.held == before
    layers.engine_replaced()
    assert layers.held == after
    following = Remap(1, RELEASE, i32(held)) if DROP in kinds else Remap(1, PREPARE, i32(held))
    assert layers.begin(following) == ""


def test_a_crash_undoes_a_load() -> None:
    layers = layer_set()
    phases(layers, FEWER, HALF)
    phases(layers, MORE[:2], ALL, layout=2)
    layers.engine_replaced()
    assert (layers.held, layers.slots) == (HALF, ROOM)
    assert "no change" in layers.begin(Remap(2, COMMIT, i32(ALL)))


@pytest.mark.parametrize(
    ("done", "message", "words"),
    [
        ((), Remap(1, ABORT, i32(HALF)), "no change"),
        ((), Remap(1, DROP, i32(HALF)), "no change"),
        ((), Remap(1, PREPARE, i32()), "are not layers of 4"),
        ((), Remap(1, PREPARE, i32([1, 0])), "are not layers of 4, ascending"),
        ((), Remap(0, PREPARE, i32(HALF)), "layout 0 is in force"),
        ((), Remap(1, PREPARE, i32(ALL)), "neither fewer nor more"),
        (FEWER, Remap(2, PREPARE, i32([1, 2])), "neither fewer nor more"),
        (FEWER[:1], Remap(2, PREPARE, i32([0])), "under way is layout 1"),
        (FEWER[:1], Remap(2, DROP, i32(HALF)), "under way is layout 1"),
        (FEWER[:1], Remap(1, DROP, i32([0])), "under way is layout 1"),
        (FEWER[:1], Remap(1, RELEASE, i32(HALF)), "the next phase is DROP_WEIGHTS"),
        (FEWER[:1], Remap(1, LOAD, i32(HALF)), "the next phase is DROP_WEIGHTS"),
    ],
)
def test_a_phase_out_of_order_is_refused(done: tuple[RemapPhase, ...], message: Remap, words: str) -> None:
    layers = layer_set()
    phases(layers, done, HALF)
    assert words in layers.begin(message)


def step(**fields: Any) -> Step:
    columns = {"sequence": i64([1]), "start": i64([0]), "stop": i64([1]), "sample": i8([0])}
    return Step(1, **{**columns, "extent_row": i32(), "extent_start": i64(), "extent_length": i64(), **fields})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"layout": 1, "hidden_out": 1}, ""),
        ({"layout": 1, "hidden_out": 1, "layer_stop": 1}, ""),
        ({"layout": 1, "hidden_out": 1, "hidden_in": 2, "layer_start": 1, "layer_stop": 2}, ""),
        ({"hidden_out": 1}, "composed for layout 0"),
        ({"layout": 1}, "hidden rooms 0 and 0"),
        ({"layout": 1, "hidden_out": 1, "hidden_in": 1}, ""),
        ({"layout": 1, "hidden_out": 1, "layer_stop": 3}, "layers 0 to 3 are not held"),
        ({"layout": 1, "hidden_out": 1, "sample": i8([1])}, "samples before the last layer"),
    ],
)
def test_a_step_needs_its_layers_and_its_rooms(fields: dict[str, Any], words: str) -> None:
    layers = layer_set()
    phases(layers, FEWER, HALF)
    refusal = layers.refusal(step(**fields))
    assert words in refusal if words else refusal == ""


def test_kv_that_is_retained_of_layers_that_stay_away_takes_room_beside_those_that_come() -> None:
    """Of 5,000 bytes beside three layers' weights 256 slots (16 bytes each) of layers 2 and 3 are retained."""
    layers = layer_set()
    phases(layers, (PREPARE, DROP), (0,))
    assert layers.retained == {1: SLOTS, 2: SLOTS, 3: SLOTS}
    phases(layers, (ABORT,), (0,))
    room = (256 * 64 + 4000 - 2 * 1000 - 2 * SLOTS * 16) // (2 * 16) // 16 * 16
    assert phases(layers, MORE, HALF, layout=2) == [room] * 3
    assert layers.retained == {2: SLOTS, 3: SLOTS}
