"""Processes take turns on a processor: a step ends later by what its instance takes meanwhile, and so do answers."""

from dataclasses import replace
from itertools import pairwise

import pytest

from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.links import TransferModel, TransferModels
from dunlin.cost.models import ZERO, StepModel
from dunlin.cost.processes import MessageCosts, ProcessCosts
from dunlin.effects import Address, Joined
from dunlin.messages.fleet import FleetView, MemberView
from dunlin.workload.traffic.prompts import make_jobs
from dunlin.workload.traffic.trace import Arrival
from simulator.cluster.host_cpu import assign_processors, control_cost_s
from simulator.cluster.network import NetworkSpec
from simulator.cluster.simulated import SimulatedCluster
from simulator.cluster.spec import ClusterSpec
from simulator.engine.model import SimulatedEngineSettings, make_engine_ready
from simulator.engine.timing import UnsteadyTiming
from simulator.study.run import SimSpec, simulate

STEP_S = 0.010
NOTHING = MessageCosts()
TIMING = EngineTiming(StepModel(ZERO, fixed_s=STEP_S), TransferModels(TransferModel(0.001, 1e9)), 0.0, 4096, 1024)


def token_times(
    host: ProcessCosts | None, requests: int = 1, tokens: int = 20, ratios: tuple[float, ...] = ()
) -> list[list[float]]:
    ready = make_engine_ready(slots=TIMING.slots, kv_bytes_per_token=1024)
    timing = UnsteadyTiming(replace(TIMING, unsteadiness=ratios))
    engine = SimulatedEngineSettings(ready=ready, timing=timing, progress_s=0.25, audit=False)
    cluster = ClusterSpec(1, preset="chunked", engine=engine, network=NetworkSpec(1e-6, 1e-6, 1e-6), host=host)
    arrivals = [Arrival(0.0, 4, tokens) for _ in range(requests)]
    jobs = make_jobs(arrivals, ready.max_positions, ready.vocabulary, 0, 1.0)
    return [list(record.token_s) for record in simulate(SimSpec(cluster, jobs, sample_s=0.0)).records]


def costs(instance: MessageCosts = NOTHING, door: MessageCosts = NOTHING, shares: bool = True) -> ProcessCosts:
    return ProcessCosts(instance, door, 1e-6, shares)


def period_s(times: list[float]) -> float:
    return (times[-1] - times[3]) / (len(times) - 4)


def test_without_costs_a_token_comes_each_step() -> None:
    (times,) = token_times(None)
    assert period_s(times) == pytest.approx(STEP_S, abs=1e-4)


def test_on_one_core_the_step_and_the_instance_take_turns() -> None:
    (times,) = token_times(costs(MessageCosts(step_s=0.003)))
    assert period_s(times) == pytest.approx(STEP_S + 0.003, abs=1e-4)


def test_on_a_core_of_its_own_the_instance_is_hidden_behind_the_step() -> None:
    (times,) = token_times(costs(MessageCosts(step_s=0.003), shares=False))
    assert period_s(times) == pytest.approx(STEP_S, abs=1e-4)


def test_rows_cost_by_their_number() -> None:
    times = token_times(costs(MessageCosts(row_s=0.001)), requests=4)
    assert period_s(times[0]) == pytest.approx(STEP_S + 0.004, abs=2e-4)


def test_a_request_delays_the_first_token_once() -> None:
    (bare,), (taxed,) = token_times(costs()), token_times(costs(MessageCosts(request_s=0.007)))
    assert taxed[0] - bare[0] == pytest.approx(0.007, abs=1e-4)
    assert period_s(taxed) == pytest.approx(STEP_S, abs=1e-4)


def test_a_slow_door_delays_tokens_and_no_step() -> None:
    (bare,), (taxed,) = token_times(costs()), token_times(costs(door=MessageCosts(step_s=0.004)))
    assert taxed[0] - bare[0] == pytest.approx(0.004, abs=1e-4)
    assert period_s(taxed) == pytest.approx(STEP_S, abs=1e-4)


def test_steps_are_as_unsteady_as_the_machine() -> None:
    """Every piece of 2 ms took so many times as long: a step of 10 ms meets five."""
    (times,) = token_times(costs(), ratios=(1.0, 2.0, 2.0, 2.0, 3.0, 4.0, 2.0, 2.0, 2.0, 5.0))
    gaps = [round(b - a, 4) for a, b in pairwise(times[2:])]
    assert sorted(set(gaps)) == pytest.approx([2 * STEP_S, 3 * STEP_S], abs=1e-4)
    assert all(a != b for a, b in pairwise(gaps))


def test_a_manager_and_a_monitor_take_time_too() -> None:
    cluster = SimulatedCluster(ClusterSpec(3, dispatchers=2, managers=2, preset="chunked"))
    prices = replace(costs(shares=False), control=MessageCosts(step_s=0.001, row_s=0.002))
    assign_processors(cluster, prices)
    processors = {
        address: cluster.world.processor(address)
        for role in ("monitor", "global_manager", "dispatcher")
        for address in cluster.of_role(role)
    }
    assert len({id(one) for one in processors.values()}) == len(processors) == 5
    cluster.world.run_to(15.0)
    busy_s = dict.fromkeys(("monitor", "global_manager", "dispatcher"), 0.0)
    for address, one in processors.items():
        busy_s[address.role] += one.busy_s if one is not None else 0.0
    assert busy_s["monitor"] > 0.01
    assert busy_s["global_manager"] > 0.01
    assert busy_s["dispatcher"] == 0.0
    view = FleetView(1, (MemberView(Address("instance", "a", 1)),) * 3)
    assert control_cost_s(prices.control, view) == pytest.approx(0.007)
    assert control_cost_s(prices.control, Joined()) == 0.0


def test_all_share_a_processor_where_the_machine_has_but_one_besides() -> None:
    cluster = SimulatedCluster(ClusterSpec(1, preset="chunked"))
    assign_processors(cluster, costs(shares=True))
    monitor, manager, dispatcher = (
        cluster.world.processor(cluster.of_role(role)[0]) for role in ("monitor", "global_manager", "dispatcher")
    )
    assert monitor is manager is dispatcher
    assert monitor is not None
