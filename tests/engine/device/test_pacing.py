"""The host runs ahead of the device by one piece, or by short ones of a bounded length. Events play those of CUDA."""

from types import SimpleNamespace

import pytest
import torch

from dunlin.engine.attention.native.library import KernelUnavailable
from dunlin.engine.decoder.native.decode_steps import ALL_BEGUN
from dunlin.engine.device import pacing
from dunlin.engine.device.pacing import AHEAD_MS, MOST_AHEAD, CudaPacer, HostPacer, KernelPacer, choose_host_pacer


class Device:
    """Pieces by number; the device has `done` of them, and each takes `piece_ms`."""

    def __init__(self, piece_ms: float) -> None:
        self.piece_ms = piece_ms
        self.launched = self.done = self.looks = 0

    @property
    def under_way(self) -> int:
        return self.launched - self.done


class Event:
    def __init__(self, device: Device) -> None:
        self.device = device

    def record(self, stream: "Stream") -> None:
        self.device.launched += 1
        self.number = self.device.launched

    def query(self) -> bool:
        return self.device.done >= self.number

    def synchronize(self) -> None:
        self.device.done = max(self.device.done, self.number)

    def elapsed_time(self, later: "Event") -> float:
        return (later.number - self.number) * self.device.piece_ms


class Stream:
    def __init__(self, device: Device) -> None:
        self.device = device

    def synchronize(self) -> None:
        self.device.done = self.device.launched

    def query(self) -> bool:
        self.device.looks += 1
        return self.device.done == self.device.launched


def make_pacer(monkeypatch: pytest.MonkeyPatch, piece_ms: float) -> tuple[CudaPacer, Device]:
    device = Device(piece_ms)
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: Event(device))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda of: Stream(device))
    return CudaPacer(torch.device("cuda", 0)), device


@pytest.mark.parametrize(
    ("piece_ms", "most"), [(5.0, 1), (AHEAD_MS, 1), (AHEAD_MS / 1.5, 2), (AHEAD_MS / 6.5, 7), (1e-6, MOST_AHEAD)]
)
def test_as_many_pieces_are_under_way_as_take_the_time(
    monkeypatch: pytest.MonkeyPatch, piece_ms: float, most: int
) -> None:
    pacer, device = make_pacer(monkeypatch, piece_ms)
    seen = []
    for _ in range(60):
        pacer.pace(99)
        seen.append(device.under_way)
    assert seen[:5] == [1] * 5, "as long as no length is known"
    assert max(seen) == seen[-1] == most


def test_the_last_pieces_of_a_step_are_launched_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    pacer, device = make_pacer(monkeypatch, AHEAD_MS / 3)
    for _ in range(60):
        pacer.pace(99)
    seen = []
    for left in (4, 3, 2, 1, 0):
        pacer.pace(left)
        seen.append(device.under_way)
    assert seen == [3, 3, 4, 5, 6]


def test_pieces_that_are_done_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pacer, device = make_pacer(monkeypatch, 5.0)
    for _ in range(20):
        pacer.pace(99)
        device.done = device.launched
    pacer.pace(99)
    assert device.under_way == 1


def test_what_is_settled_is_waited_for_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    pacer, device = make_pacer(monkeypatch, 5.0)
    pacer.pace(99)
    pacer.pace(99)
    pacer.settle()
    assert device.under_way == 0
    pacer.pace(99)
    assert device.under_way == 1


def test_who_looks_after_a_device_waits_no_longer_than_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pacer, device = make_pacer(monkeypatch, 5.0)
    now_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    monkeypatch.setattr(pacing, "time", SimpleNamespace(perf_counter=lambda: now_s, sleep=sleep))
    assert pacer.advance(1.0), "nothing was launched"
    pacer.pace(99)
    assert not pacer.advance(0.0)
    assert now_s == 0.0
    assert not pacer.advance(1e-3)
    assert 1e-3 <= now_s < 1.1e-3
    device.done = device.launched
    assert pacer.advance(1.0)
    assert now_s < 1.1e-3


def test_the_kernels_steps_are_joined() -> None:
    joined: list[tuple[int, float]] = []

    def join(ticket: int, most_s: float) -> int:
        joined.append((ticket, most_s))
        return int(len(joined) > 1)

    pacer = KernelPacer(SimpleNamespace(dunlin_decode_join=join))
    assert not pacer.advance(0.5)
    assert pacer.advance(0.25)
    pacer.settle()
    assert joined == [(ALL_BEGUN, 0.5), (ALL_BEGUN, 0.25), (ALL_BEGUN, -1.0)]


@pytest.mark.parametrize("level", [0, 1, None])
def test_without_a_kernel_for_this_processor_nothing_is_paced(
    monkeypatch: pytest.MonkeyPatch, level: int | None
) -> None:
    def load() -> SimpleNamespace:
        if level is None:
            raise KernelUnavailable("not built")
        return SimpleNamespace(dunlin_level=lambda: level)

    monkeypatch.setattr(pacing, "load_step_library", load)
    choose_host_pacer.cache_clear()
    assert isinstance(choose_host_pacer(), KernelPacer if level == 1 else HostPacer)
    choose_host_pacer.cache_clear()
