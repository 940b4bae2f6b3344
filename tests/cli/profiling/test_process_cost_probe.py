"""Costs are told apart by least squares over loads; what they leave of a first token's time is the hops'."""

import pytest

from cli.profiling.process_cost_probe import (
    LOADS,
    PROMPT,
    ProcessUsage,
    fit_process_costs,
    supervised_processes,
    without_idle_cost,
)
from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.links import TransferModel, TransferModels
from dunlin.cost.models import ZERO, StepModel
from dunlin.cost.processes import MessageCosts, ProcessCosts
from dunlin.cost.serialize import parse_process_costs, parse_timing, serialize_timing

INSTANCE = MessageCosts(step_s=0.0004, row_s=0.00002, request_s=0.0009, idle_share=0.03)
DISPATCHER = MessageCosts(step_s=0.0002, row_s=0.00005, request_s=0.0006, idle_share=0.05)
CLIENT = MessageCosts(step_s=0.0001, row_s=0.00004, request_s=0.0003)
START_S = 0.8
TIMING = EngineTiming(StepModel(ZERO, fixed_s=0.004), TransferModels(TransferModel(0.001, 1e9)), 0.0, 4096, 1024)


def taken_s(costs: MessageCosts, wall_s: float, steps: float, rows: float, requests: float) -> float:
    return costs.idle_share * wall_s + costs.step_s * steps + costs.row_s * rows + costs.request_s * requests


def use(wall_s: float, steps: float, rows: float, requests: float) -> ProcessUsage:
    counts = (wall_s, steps, rows, requests)
    client_s = taken_s(CLIENT, *counts) + (START_S if requests else 0.0)
    return ProcessUsage(*counts, taken_s(INSTANCE, *counts), taken_s(DISPATCHER, *counts), client_s)


def uses() -> list[ProcessUsage]:
    loads = [
        use(1.0 + index, load.steps, load.requests * load.output_tokens, load.requests)
        for index, load in enumerate(LOADS)
    ]
    return [use(3.0, 0.0, 0.0, 0.0), *loads]


def test_the_costs_behind_the_uses_are_found() -> None:
    found = fit_process_costs(uses(), 0.020, TIMING, shares_core=True)
    assert found.shares_core
    for name in ("step_s", "row_s", "request_s", "idle_share"):
        assert getattr(found.instance, name) == pytest.approx(getattr(INSTANCE, name), rel=1e-3)
    for name in ("step_s", "row_s", "request_s"):
        assert getattr(found.door, name) == pytest.approx(getattr(DISPATCHER, name) + getattr(CLIENT, name), rel=1e-3)


def test_hops_are_what_is_left_of_the_first_token() -> None:
    own_s = 0.004 + INSTANCE.step_s + INSTANCE.row_s + INSTANCE.request_s
    door_s = sum(each.step_s + each.row_s + each.request_s for each in (DISPATCHER, CLIENT))
    assert fit_process_costs(uses(), own_s + door_s + 0.005, TIMING, True).hop_s == pytest.approx(0.001, rel=1e-2)
    assert fit_process_costs(uses(), 0.001, TIMING, True).hop_s == 0.0


def test_prompts_come_in_steps_of_512_tokens() -> None:
    steps = {load.name: load.steps for load in LOADS}
    assert steps["spaced"] == 60
    assert steps["crowd"] == 160 * PROMPT / 512
    assert steps["one"] == 600


def test_costs_are_kept_and_read_back() -> None:
    host = ProcessCosts(INSTANCE, DISPATCHER, 0.0007, shares_core=True)
    timing = EngineTiming(TIMING.step, TIMING.moves, 1.0, 4096, 1024, (1.0, 1.25), host)
    assert parse_timing(serialize_timing(timing)) == timing
    old = {name: part for name, part in serialize_timing(timing).items() if name not in ("host", "unsteadiness")}
    assert parse_timing(old).host is None
    assert parse_timing(old).unsteadiness == ()
    with pytest.raises(KeyError):
        parse_process_costs({"instance": {}, "door": {}})


def test_what_idle_processes_take_can_be_left_out() -> None:
    host = without_idle_cost(ProcessCosts(INSTANCE, DISPATCHER, 0.0007, shares_core=True))
    assert host.instance.idle_share == 0.0
    assert host.instance.step_s == INSTANCE.step_s


def test_processes_of_another_are_not_found() -> None:
    assert supervised_processes(2**22 + 1) == []
