"""Times of LoongServe's planner for a modelled fleet: one device, one model, instances of some GPUs."""

from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.group_times import planning_times
from dunlin.cost.timing_loader import load_timing
from dunlin.policies.loongserve.inputs import GroupTimes

DEGREES = (1, 2, 4, 8)
DECODE_S = 8.0
"""The mean time that requests decode for: 250 tokens of 30 ms or so."""


def fleet_times(device: str, shape: str, tp: int) -> tuple[EngineTiming, GroupTimes]:
    """The engine's times, and what the planner compares."""
    timing = load_timing(device, shape, tp)
    return timing, planning_times(timing, DEGREES, DECODE_S, tp)
