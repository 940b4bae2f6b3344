"""What the kernel says of this process's threads, and torch's number of threads that follows from it."""

import os
import time
from collections.abc import Iterator

import pytest
import torch

from dunlin.engine.process import compute_threads
from dunlin.engine.process.compute_threads import LOOK_S, ComputeThreadPool, read_cpu_times
from dunlin.engine.process.thread_policy import CpuTimes

STAT = """cpu  30 2 8 400 5 1 1 3 9 0
cpu0 10 1 4 200 5 1 0 1 9 0
cpu1 20 1 4 200 0 0 1 2 0 0
intr 7
"""


@pytest.fixture(autouse=True)
def one_thread_afterwards() -> Iterator[None]:
    yield
    torch.set_num_threads(1)


def test_all_that_runs_on_the_cores_named_is_counted() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    assert compute_threads._busy_s(STAT, {0}) * ticks == 10 + 1 + 4 + 1 + 0 + 1
    assert compute_threads._busy_s(STAT, {0, 1}) * ticks == 17 + 28


def test_work_of_this_process_is_seen_as_its_own() -> None:
    before = read_cpu_times(0.0, os.sched_getaffinity(0))
    until_s = time.process_time() + 0.1
    while time.process_time() < until_s:
        pass
    after = read_cpu_times(1.0, os.sched_getaffinity(0))
    assert before is not None
    assert after is not None
    assert after.own_s - before.own_s >= 0.1
    assert after.waited_s >= before.waited_s
    assert after.busy_s > before.busy_s


def test_it_looks_now_and_then_and_torch_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, looked = 0.0, []

    def contended(at_s: float, cores: set[int]) -> CpuTimes:
        looked.append(at_s)
        return CpuTimes(at_s, waited_s=4 * at_s, own_s=at_s, busy_s=2 * at_s)

    monkeypatch.setattr(compute_threads, "read_cpu_times", contended)
    threads = ComputeThreadPool(2, lambda: now_s)
    threads.adjust()
    assert (looked, torch.get_num_threads()) == ([], 2), "there is no choice yet"
    threads.allow([1, 2])
    for at_s in (0.0, LOOK_S / 2, LOOK_S, 1.5 * LOOK_S):
        now_s = at_s
        threads.adjust()
    assert looked == [0.0, LOOK_S]
    assert torch.get_num_threads() == 1


def test_without_an_account_the_number_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr(compute_threads, "_STAT", tmp_path)
    threads = ComputeThreadPool(2)
    threads.allow([1, 2])
    threads.adjust()
    assert read_cpu_times(0.0, {0}) is None
    assert torch.get_num_threads() == 2
