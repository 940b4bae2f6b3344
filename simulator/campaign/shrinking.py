"""Makes a failing plan smaller: drops entries while the plan still fails, within a bounded number of trials.

Delta debugging (Zeller, Hildebrandt: Simplifying and isolating failure-inducing input, 2002) over faults and requests.
Knows no cluster; a callback decides whether a plan fails.
"""

from collections.abc import Callable

from simulator.campaign.plans import TrialPlan


class PlanShrinker:
    """Shrinks plans. `fails(plan)`: the plan breaks the same invariant. `most`: the limit of trials."""

    def __init__(self, fails: Callable[[TrialPlan], bool], most: int = 100) -> None:
        self.runs = 0
        self._fails = fails
        self._most = most

    def shrink(self, plan: TrialPlan) -> TrialPlan:
        """The smallest part of a failing plan that was found to fail."""
        while True:
            before = plan
            plan = self._part(plan, [fault.number for fault in plan.faults], _with_faults)
            plan = self._part(plan, [ask.number for ask in plan.requests], _with_asks)
            if plan == before or self.runs >= self._most:
                return plan

    def _part(
        self, plan: TrialPlan, entries: list[int], keep: Callable[[TrialPlan, list[int]], TrialPlan]
    ) -> TrialPlan:
        """Drop chunks of the entries, halving their size down to one."""
        size = max(1, len(entries))
        while entries:
            index = 0
            while index < len(entries):
                fewer = entries[:index] + entries[index + size :]
                smaller = keep(plan, fewer)
                if self._still_fails(smaller):
                    entries, plan = fewer, smaller
                else:
                    index += size
            if size == 1:
                break
            size = (size + 1) // 2
        return plan

    def _still_fails(self, plan: TrialPlan) -> bool:
        if self.runs >= self._most:
            return False
        self.runs += 1
        return self._fails(plan)


def _with_faults(plan: TrialPlan, faults: list[int]) -> TrialPlan:
    return plan.subset(frozenset(ask.number for ask in plan.requests), frozenset(faults))


def _with_asks(plan: TrialPlan, asks: list[int]) -> TrialPlan:
    return plan.subset(frozenset(asks), frozenset(fault.number for fault in plan.faults))
