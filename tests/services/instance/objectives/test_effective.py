"""The objectives that a step and an interrupt are asked with: the requests' own, else the cluster's."""

from collections.abc import Sequence
from typing import Any

import pytest

from dunlin.messages.dispatch import Cancel, Place
from dunlin.messages.engine import Interrupt
from dunlin.messages.types import RequestClass
from dunlin.policies.batch import BATCH_POLICIES, chunked_prefill
from dunlin.policies.step_budget import BatchCandidate, StepBudget
from services.instance.config import ObjectivesConfig
from services.instance.objectives.effective import EffectiveObjectives
from services.instance.sequence.table import SequenceTable
from tests.services.instance.bench import ENGINE, D, Direct, done, figures, make_place, of, only, ready_core
from tests.services.instance.scheduling.test_interrupts import with_batch_steps

DECODE, PROMPT = BatchCandidate(1, True), BatchCandidate(9, False)
CLUSTER = (1.0, 0.1)


def budget_of(*asked: tuple[Place, BatchCandidate]) -> tuple[float, float]:
    """(TTFT, TPOT) of the budget of these candidates."""
    table, budget = SequenceTable(), StepBudget(512)
    rows = [(table.add(D, place), candidate) for place, candidate in asked]
    EffectiveObjectives(ObjectivesConfig(*CLUSTER)).set_budget(budget, [row[0] for row in rows], rows)
    return budget.ttft_s, budget.tpot_s


def own(request: int, ttft_s: float = 0.0, tpot_s: float = 0.0, **overrides: Any) -> Place:
    return make_place(request, ttft_objective_s=ttft_s, tpot_objective_s=tpot_s, **overrides)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ([], CLUSTER),
        ([(own(1), DECODE), (own(2), PROMPT)], CLUSTER),
        ([(own(1, 0.2, 0.02), DECODE), (own(2), PROMPT)], (1.0, 0.02)),
        ([(own(1, 0.2, 0.02), PROMPT), (own(2), DECODE)], (0.2, 0.1)),
        ([(own(1, 0.2, 0.02), DECODE), (own(2, 0.3, 0.01), PROMPT), (own(3, 0.4, 0.03), PROMPT)], (0.3, 0.02)),
        ([(own(1, 5.0, 0.5), DECODE), (own(2, 5.0, 0.5), PROMPT)], (5.0, 0.5)),
        ([(own(1, 5.0, 0.5), DECODE), (own(2), DECODE)], (1.0, 0.1)),
        ([(own(1, 0.2, 0.02, request_class=RequestClass.BATCH), DECODE)], CLUSTER),
        ([(own(1, 0.2, 0.02, request_class=RequestClass.BATCH), DECODE), (own(2, 0.0, 0.5), DECODE)], (1.0, 0.5)),
    ],
)
def test_a_step_is_held_to_the_strictest(
    asked: list[tuple[Place, BatchCandidate]], expected: tuple[float, float]
) -> None:
    assert budget_of(*asked) == expected


def test_steps_are_composed_for_those_that_are_in(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[float, float]] = []

    def policy(candidates: Sequence[BatchCandidate], budget: StepBudget) -> list[int]:
        seen.append((budget.ttft_s, budget.tpot_s))
        return chunked_prefill(candidates, budget)

    monkeypatch.setitem(BATCH_POLICIES, "chunked", policy)
    direct = ready_core(objectives__ttft_s=1.0, objectives__tpot_s=0.1)
    direct.give(D, make_place(1, tokens=4, max_tokens=50))
    direct.give(D, own(2, 0.3, 0.03, tokens=4, max_tokens=50))
    assert seen == [(1.0, 0.1)] * 2, "of the first request alone"
    direct.give(ENGINE, done(1, (1, 5)))
    assert seen[2:] == [(0.3, 0.1)], "its prompt is in"
    direct.give(ENGINE, done(2, (1, 6)))
    assert seen[3:] == [(1.0, 0.03)], "it decodes"
    direct.give(ENGINE, done(3, (1, 7), (2, 5)))
    direct.give(ENGINE, done(4, (1, 8), (2, 6)))
    assert len(seen) == 4, "the batch is the same: it is not asked"
    direct.give(D, Cancel(2, 1))
    direct.give(ENGINE, done(5, (1, 9), (2, 7)))
    assert seen[4:] == [(1.0, 0.1)], "it left"


def expected_of(direct: Direct, place: Place, now_s: float) -> dict[str, float] | None:
    """The figures of the interrupt that a request's arrival caused."""
    found = of(Interrupt, direct.give(D, place, now_s))
    return figures(found[0].why) if found else None


def test_an_arrival_interrupts_by_its_own_objective() -> None:
    place = make_place(2, tokens=30, may_preempt=True, ttft_objective_s=1.8)
    found = expected_of(with_batch_steps(objectives__ttft_s=9.0), place, 0.05)
    assert found is not None
    assert found["ttft_objective_s"] == 1.8
    assert found["expected_ttft_s"] == pytest.approx(1.85)
    patient = make_place(2, tokens=30, may_preempt=True, ttft_objective_s=1.9)
    assert expected_of(with_batch_steps(objectives__ttft_s=1.0), patient, 0.05) is None


def test_of_several_that_wait_the_one_that_is_due_first_counts() -> None:
    direct = with_batch_steps(objectives__ttft_s=9.0)
    assert expected_of(direct, make_place(2, tokens=10, may_preempt=True, ttft_objective_s=3.0), 0.05) is None
    found = expected_of(direct, make_place(3, tokens=10, may_preempt=True, ttft_objective_s=0.9), 0.25)
    assert found is not None
    assert found["ttft_objective_s"] == 0.9
    assert found["expected_ttft_s"] == pytest.approx(1.35 + 0.2), "since it came, with both prompts"
    late = with_batch_steps(objectives__ttft_s=9.0)
    late.give(D, make_place(2, tokens=10, may_preempt=True, ttft_objective_s=1.75), 0.0)
    message = only(Interrupt, late.give(D, make_place(3, tokens=10, may_preempt=True, ttft_objective_s=1.78), 0.0))
    assert figures(message.why)["ttft_objective_s"] == 1.75
