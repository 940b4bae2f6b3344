"""A contestant's side of the conversation: a `Setup` and then `Turn`s come in on stdin, results go out on stdout, each
a line of JSON. Imports nothing of dunlin.
"""

import os
import sys
import time
from collections.abc import Callable
from typing import Protocol

import msgspec
import torch

from benchmarks.engine.workloads import Setup, Turn, TurnResult

READY = b"ready\n"


class Contestant(Protocol):
    """Whatever can run what a `Turn` names."""

    def run(self, name: str) -> list[int]:
        """Compute it once; the first sampled token of each request."""


def serve(make: Callable[[Setup], Contestant]) -> None:
    """Make the contestant, say `ready`, and take turns until stdin ends. What libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    line = sys.stdin.buffer.readline()
    if not line:
        return
    setup = msgspec.json.decode(line, type=Setup)
    torch.set_num_threads(setup.threads)
    contestant = make(setup)
    answers.write(READY)
    for line in sys.stdin.buffer:
        answers.write(msgspec.json.encode(measure(contestant, msgspec.json.decode(line, type=Turn))) + b"\n")


def measure(contestant: Contestant, turn: Turn) -> TurnResult:
    """Run it until `least_s` have passed."""
    runs, cpu_s, began_s = 0, time.process_time(), time.perf_counter()
    first: list[int] = []
    while not runs or time.perf_counter() - began_s < turn.least_s:
        first = contestant.run(turn.name)
        runs += 1
    return TurnResult(runs, time.perf_counter() - began_s, time.process_time() - cpu_s, first)
