"""Times of LoongServe's planner for a modelled fleet: one device, one model, instances of some GPUs."""

from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.group_times import DEGREES, START_DECODE_S, planning_times
from dunlin.cost.timing_loader import load_timing
from dunlin.policies.loongserve.inputs import GroupTimes


def fleet_times(device: str, shape: str, tp: int) -> tuple[EngineTiming, GroupTimes]:
    """The engine's times, and what the planner compares."""
    timing = load_timing(device, shape, tp)
    return timing, planning_times(timing, DEGREES, START_DECODE_S, tp)
