"""Whose chunk a group's step has, and how long it is, where the leader's steps are predicted."""

import pytest

from dunlin.cost.models import BatchCounts
from dunlin.policies.groups import group_turns
from tests.services.instance.group.leading.scripted_group import ScriptedGroup, exchanges


class PricedPrefixes:
    """A step takes 1 ms for each token that it computes, and as much again for 10 tokens before each."""

    def step_s(self, batch: BatchCounts) -> float:
        return 1e-3 * batch.prefill_tokens + 1e-4 * batch.prefix_products


def prompt_order(group: ScriptedGroup) -> list[int]:
    """The sequences in the order of their last chunks."""
    last = {row[0]: index for index, found in enumerate(exchanges(group)) for rows in found.values() for row in rows}
    return sorted(last, key=lambda number: last[number])


def test_a_short_prompt_passes_a_long_one_that_came_before() -> None:
    group = ScriptedGroup(400, 400, groups__chunk_tokens=4)
    group.place(1, tokens=200, max_tokens=1)
    group.run(0.05)
    group.place(2, tokens=12, max_tokens=1)
    group.run(2.0)
    long, short = sorted(prompt_order(group))
    assert prompt_order(group) == [short, long]


def test_a_chunk_is_bounded_by_the_predicted_time_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_turns, "LEAST_CHUNK_TOKENS", 8)
    group = ScriptedGroup(600, 600, times=PricedPrefixes(), groups__chunk_tokens=128, groups__step_s=0.14)
    group.place(1, tokens=900, max_tokens=1)
    group.run(9.0)
    chunks = [max(row[2] - row[1] for rows in found.values() for row in rows) for found in exchanges(group)]
    assert chunks[0] == 128  # nothing is before it
    assert 8 <= chunks[-2] <= chunks[1] < 64
    assert sum(row[2] - row[1] for found in exchanges(group) for rows in found.values() for row in rows) == 900
