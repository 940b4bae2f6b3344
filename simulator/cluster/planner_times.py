"""What the managers of a simulated cluster know of the times of prompts in groups: all that its engines know."""

from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.group_times import DEGREES, START_DECODE_S, planning_times
from dunlin.policies.loongserve.inputs import GroupTimes, PrefillPrices
from simulator.engine.timing import LinearTiming, Timing, UnsteadyTiming

_MOVED_PER_S = 1e6
_TOKEN_SHARE = 0.01
"""Where steps take the same whatever they hold: what a manager takes a token for, as a share of the step. So groups of
campaigns have any size; else more instances would never be worth it.
"""


def planner_times(timing: Timing) -> GroupTimes | None:
    """The planner's times for engines of this timing; None: it is of no known kind."""
    if isinstance(timing, UnsteadyTiming):
        timing = timing.steady
    if isinstance(timing, EngineTiming):
        return planning_times(timing, DEGREES, START_DECODE_S)
    if not isinstance(timing, LinearTiming):
        return None
    token_s = timing.token_s or _TOKEN_SHARE * timing.fixed_s
    measured = {size: PrefillPrices(timing.fixed_s, token_s / size, 0.0) for size in DEGREES}
    return GroupTimes(measured, 2.0 * timing.fixed_s, START_DECODE_S, _MOVED_PER_S, rows_per_master=256)
