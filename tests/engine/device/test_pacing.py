"""The host runs two pieces ahead of the device at most. Events play those of CUDA."""

import pytest
import torch

from dunlin.engine.device.pacing import CudaPacer

TOLD: list[str] = []


class Event:
    made = 0

    def __init__(self) -> None:
        Event.made += 1
        self.name = f"piece {Event.made}"

    def record(self, stream: "Stream") -> None:
        TOLD.append(f"{self.name} launched")

    def synchronize(self) -> None:
        TOLD.append(f"{self.name} done")


class Stream:
    def synchronize(self) -> None:
        TOLD.append("all done")


def test_a_piece_is_launched_once_the_last_but_one_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    TOLD.clear()
    Event.made = 0
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    pacer = CudaPacer(torch.device("cuda", 0))
    for _ in range(3):
        pacer.pace()
    assert TOLD == ["piece 1 launched", "piece 2 launched", "piece 1 done", "piece 3 launched", "piece 2 done"]
    pacer.settle()
    pacer.pace()
    assert TOLD[5:] == ["all done", "piece 4 launched"], "what is settled is waited for no more"
