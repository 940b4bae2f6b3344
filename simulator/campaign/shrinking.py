"""Makes a failing plan smaller: drops entries as long as it goes on to fail, within a bounded number of runs.

Delta debugging (Zeller, Hildebrandt: Simplifying and isolating failure-inducing input, 2002) over faults and requests.
Knows no cluster: whether a plan fails, it is told.
"""

from collections.abc import Callable

from simulator.campaign.plans import TrialPlan


class PlanShrinker:
    """`fails` runs a plan and says whether the same invariant is broken. At most `most` runs."""

    def __init__(self, fails: Callable[[TrialPlan], bool], most: int = 100) -> None:
        self.runs = 0
        self._fails = fails
        self._most = most

    def shrink(self, plan: TrialPlan) -> TrialPlan:
        """The smallest part of the plan that was found to fail; the plan itself is known to."""
        while True:
            before = plan
            plan = self._part(plan, [fault.number for fault in plan.faults], _with_faults)
            plan = self._part(plan, [ask.number for ask in plan.requests], _with_asks)
            if plan == before or self.runs >= self._most:
                return plan

    def _part(
        self, plan: TrialPlan, entries: list[int], keep: Callable[[TrialPlan, list[int]], TrialPlan]
    ) -> TrialPlan:
        """Drop ever smaller pieces of the entries."""
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
