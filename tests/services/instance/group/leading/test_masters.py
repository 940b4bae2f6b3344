"""Which member generates the next tokens of a row whose master has more rows than it computes well."""

from typing import Any

import pytest

from dunlin.cost.models import BatchCounts
from tests.services.instance.group.leading.scripted_group import ScriptedGroup, exchanges


class PricedTokens:
    """A step takes 10 ms, and 10 ms for each token: one of two takes less than twice as long as one of one."""

    def step_s(self, batch: BatchCounts) -> float:
        return 0.01 + 0.01 * (batch.prefill_tokens + batch.decode_rows)


def group_of(count: int, *slots: int, **config: Any) -> ScriptedGroup:
    """A group with so many requests, all kept at the member of most room."""
    group = ScriptedGroup(*slots, groups__policy="fewest", **config)
    for request in range(1, count + 1):
        group.place(request, tokens=10, max_tokens=30)
    return group


def answered(group: ScriptedGroup) -> int:
    """Requests whose text is complete; a wrong token fails at once."""
    return sum(attempt.is_over for attempt in group.dispatcher.attempts.values())


def last_masters(group: ScriptedGroup) -> dict[int, int]:
    """The member that computed the last token, by sequence."""
    return {row[0]: member for found in exchanges(group) for member, rows in found.items() for row in rows}


@pytest.mark.parametrize(("requests", "elsewhere"), [(2, 0), (3, 1), (4, 2), (6, 3)])
def test_rows_beyond_what_a_master_computes_well_go_on_at_the_other(requests: int, elsewhere: int) -> None:
    group = group_of(requests, 400, 200, times=PricedTokens())
    group.run(3.0)
    assert answered(group) == requests
    assert sorted(last_masters(group).values()) == [0] * (requests - elsewhere) + [1] * elsewhere
    assert group.leader.report_fields()["dop_changes_total"] == elsewhere, "each moved once, and its KV stayed"


def test_rows_stay_where_nothing_is_known_of_times_or_no_other_has_room() -> None:
    for group in (group_of(6, 400, 200), group_of(6, 400, 1, times=PricedTokens())):
        group.run(3.0)
        assert answered(group) == 6
        assert set(last_masters(group).values()) == {0}


def test_a_row_whose_step_comes_to_nothing_while_it_is_to_move_is_computed_where_it_was() -> None:
    """It waits for that step to move; to move before it is computed again would keep it from both for ever."""
    group = group_of(3, 400, 200, times=PricedTokens())
    for _ in range(1000):
        if not any(spread.is_moving for spread in group.spreads):
            group.run(0.001)
    (moving,) = [spread for spread in group.spreads if spread.is_moving]
    assert moving.sequence.in_steps
    group.at(0).leaves.add(moving.number)
    group.run(3.0)
    assert answered(group) == 3
    assert sorted(last_masters(group).values()) == [0, 0, 1], "it moves all the same"
