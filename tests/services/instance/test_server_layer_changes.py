"""Layers of a real engine process go and come back under its instance, which is told so by order; also when it dies."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from dunlin.effects import Effect
from dunlin.messages.dispatch import Returned
from dunlin.messages.engine import EngineReady
from dunlin.messages.plan import RemapLayers, RemapLayersDone
from dunlin.messages.types import RemapPhase, SamplingParams, i32
from services.instance.engine.layer_changes import LayerChange, LayerChanges
from tests.engine.build import make_checkpoint
from tests.services.instance.bench import MANAGER, D, make_place
from tests.services.instance.test_server_engine_supervisor import DETERMINISTIC, Listener, Seat, seated

LENGTH = 300
TEXT = [5, 17, 300, 44, 9, 260, 33, 90]
KILLS = {
    "told": [RemapPhase.PREPARE, RemapPhase.DROP_WEIGHTS, RemapPhase.LOAD, RemapPhase.COMMIT],
    "answered": [RemapPhase.DROP_WEIGHTS, RemapPhase.LOAD],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), layers=4)


async def stream(seat: Seat, request: int) -> None:
    """Begin a text; all requests have the same."""
    place = make_place(request, known=TEXT, max_tokens=LENGTH, sampling=SamplingParams(seed=3))
    seat.host.deliver(D, place)
    await seat.until(lambda: len(seat.text(request)) >= 10, "tokens")


def order(seat: Seat, ticket: int, *layers: int) -> None:
    seat.host.deliver(MANAGER, RemapLayers(1, ticket, i32(layers)))


def killing(at: RemapPhase, when: str, monkeypatch: pytest.MonkeyPatch, kill: list[int]) -> None:
    """Kill the engine `kill[0]` when it is told that phase, or has answered it; once."""

    def strike(phase: RemapPhase) -> None:
        if phase is at and kill:
            os.kill(kill.pop(), signal.SIGKILL)

    send, apply = LayerChanges._send, LayerChanges._apply

    def told(self: LayerChanges, change: LayerChange) -> Effect:
        effect = send(self, change)
        if when == "told":
            strike(change.next)
        return effect

    def applied(self: LayerChanges, ready: EngineReady | None) -> None:
        if when == "answered" and self._change is not None:
            strike(self._change.next)
        apply(self, ready)

    monkeypatch.setattr(LayerChanges, "_send", told)
    monkeypatch.setattr(LayerChanges, "_apply", applied)


def test_a_stream_stands_while_layers_are_missing_and_goes_on(model: Path) -> None:
    async def story() -> None:
        manager = Listener()
        async with seated(model, DETERMINISTIC, remap__restore_after_s=60.0) as seat:
            seat.host.attach(MANAGER, manager)
            await seat.until_ready()
            await stream(seat, 1)
            await seat.until(lambda: seat.has_ended(1), "the end")
            slots = seat.core.report().capacity_slots
            await stream(seat, 2)
            order(seat, 1, 0, 1)
            await seat.until(lambda: len(manager.of(RemapLayersDone)) == 1, "fewer layers")
            report = seat.core.report()
            assert (report.layout, report.layers_held, report.model_layers) == (1, 2, 4)
            assert report.capacity_slots > slots
            assert not seat.has_ended(2)
            order(seat, 2)
            await seat.until(lambda: seat.has_ended(2), "the end")
            assert seat.text(2) == seat.text(1)
            report = seat.core.report()
            assert (report.layers_held, report.capacity_slots, report.recomputed_tokens_total) == (4, slots, 0)
            assert [one.detail for one in manager.of(RemapLayersDone)] == ["", ""]
            assert seat.failures == []

    asyncio.run(story())


@pytest.mark.parametrize("when", list(KILLS))
def test_a_kill_in_each_phase_costs_a_stream_no_kv(model: Path, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with seated(model, DETERMINISTIC, remap__restore_after_s=0.2) as seat:
            await seat.until_ready()
            await stream(seat, 1)
            await seat.until(lambda: seat.has_ended(1), "the end")
            for number, phase in enumerate(KILLS[when]):
                pid = await seat.until_ready(restarts=number)
                await stream(seat, 2 + number)
                with monkeypatch.context() as patch:
                    killing(phase, when, patch, kill := [pid])
                    order(seat, 1 + number, 0, 1)
                    await seat.until(lambda: not kill, f"{phase.name}")
                    await seat.until_ready(restarts=number + 1)
                await seat.until(lambda: seat.has_ended(2 + number), f"the end after {phase.name}")  # noqa: B023
                assert seat.text(2 + number) == seat.text(1)
                await seat.until(lambda: seat.core.layer_changes.is_whole, "all layers")
            report = seat.core.report()
            assert report.recomputed_tokens_total == 0
            assert report.revived_tokens_total > 10 * len(KILLS[when])
            assert (seat.listener.of(Returned), seat.failures) == ([], [])

    asyncio.run(story())
