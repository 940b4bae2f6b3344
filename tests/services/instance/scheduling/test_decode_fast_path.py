"""A step that follows from the last one is the step that would have been composed: same rows, same slots, same time."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from dunlin.effects import Address, Message
from dunlin.messages.dispatch import Tokens
from dunlin.messages.engine import Step
from dunlin.messages.types import i32
from dunlin.policies.batch import BATCH_POLICIES, chunked_prefill
from dunlin.policies.step_budget import BatchCandidate, StepBudget
from dunlin.workload.traffic.prompts import Job
from services.instance.scheduling.decode_fast_path import DecodeFastPath
from simulator.cluster.simulated import SimulatedCluster
from simulator.cluster.spec import spec_of
from simulator.study.load_generator import SimulatedLoad


def jobs(count: int, gap_s: float, seed: int) -> Iterator[Job]:
    """Texts of all lengths; some begin alike."""
    draw = Random(seed)
    for number in range(count):
        beginning = [7] * draw.choice((0, 16, 64))
        rest = [draw.randrange(1000) for _ in range(draw.randrange(1, 90))]
        yield Job(number * gap_s, i32([*beginning, *rest]), draw.randrange(1, 70))


def said(slots: int, gap_s: float, seed: int, dispatchers: int = 1) -> list[tuple[float, Address, Address, Message]]:
    """All steps and tokens of a run."""
    engine = {"slots": slots, "audit": True, "progress_s": None, "token_s": 1e-4}
    cluster = SimulatedCluster(spec_of(engine=engine, instances=2, dispatchers=dispatchers))
    load = SimulatedLoad(cluster.world, jobs(40, gap_s, seed), cluster.doors)
    while not cluster.is_ready:
        cluster.world.run_to(cluster.world.now_s + 0.1)
    load.start()
    cluster.world.run(lambda: load.is_over, for_s=120.0)
    assert [record.outcome for record in load.records] == ["ok"] * 40
    return [each for each in cluster.world.sent if isinstance(each[3], Step | Tokens)]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each step that was asked for followed."""
    follow, followed = DecodeFastPath.next_rows, list[bool]()

    def looked(self: DecodeFastPath, *args: Any) -> Any:
        found = follow(self, *args)
        followed.append(found is not None)
        return found

    monkeypatch.setattr(DecodeFastPath, "next_rows", looked)
    return followed


@pytest.mark.parametrize(("slots", "dispatchers"), [(4096, 1), (4096, 3), (256, 1)])
@pytest.mark.parametrize("seed", range(4))
def test_steps_are_those_that_would_have_been_composed(
    slots: int, dispatchers: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(DecodeFastPath, "next_rows", lambda self, running, slot_of: None)
        composed = said(slots, 0.04, seed, dispatchers)
    followed = counted(monkeypatch)
    assert said(slots, 0.04, seed, dispatchers) == composed
    assert sum(followed) > 20


def test_the_policy_is_not_asked_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counting(candidates: list[BatchCandidate], budget: StepBudget) -> list[int]:
        asked.append(len(candidates))
        return chunked_prefill(candidates, budget)

    monkeypatch.setitem(BATCH_POLICIES, "chunked", counting)
    steps = [each for each in said(4096, 1.5, 1) if isinstance(each[3], Step)]
    assert len(asked) < len(steps) / 4
