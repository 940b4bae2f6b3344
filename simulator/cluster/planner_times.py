"""What the managers of a simulated cluster know of the times of prompts in groups: all that its engines know."""

from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.group_times import DEGREES, START_DECODE_S, PlannerTimes, planning_times, steady_times
from simulator.engine.timing import LinearTiming, Timing, UnsteadyTiming

_TOKEN_SHARE = 0.01
"""Where steps take the same whatever they hold: what a manager takes a token for, as a share of the step. So groups of
campaigns have any size; else more instances would never be worth it.
"""


def planner_times(timing: Timing) -> PlannerTimes | None:
    """The planner's times for engines of this timing; None: it is of no known kind."""
    if isinstance(timing, UnsteadyTiming):
        timing = timing.steady
    if isinstance(timing, EngineTiming):
        return planning_times(timing, DEGREES, START_DECODE_S)
    if not isinstance(timing, LinearTiming):
        return None
    return steady_times(timing.fixed_s, timing.token_s or _TOKEN_SHARE * timing.fixed_s)
