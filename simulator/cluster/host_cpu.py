"""The CPUs of dunlin's own processes, whose time matters where engines run on CPUs too.

It assigns processors and prices messages. Prices are measured (`dunlin profile --host`).
"""

from dunlin.cost.processes import MessageCosts, ProcessCosts
from dunlin.effects import Address, Message
from dunlin.messages.dispatch import Place, Tokens
from dunlin.messages.door import Submit
from dunlin.messages.engine import StepDone
from dunlin.messages.fleet import DispatcherReport, FleetView, InstanceReport, KvstoreReport, ManagerReport
from simulator.cluster.engine_supervisor import SimulatedEngineSupervisor
from simulator.cluster.process import Processor
from simulator.cluster.simulated import SimulatedCluster

REPORTS = (InstanceReport, DispatcherReport, KvstoreReport, ManagerReport)


def assign_processors(cluster: SimulatedCluster, costs: ProcessCosts) -> None:
    """Give each process a processor. Where instances share their engine's, all others share one besides."""
    common = Processor(lambda to, message: _other_cost_s(costs, to, message))
    for role in ("dispatcher", "global_manager", "monitor"):
        for address in cluster.of_role(role):
            processor = common if costs.shares_core else Processor(common.cost_s)
            cluster.world.set_processor(address, processor)
    if costs.instance == MessageCosts():
        return
    for instance in cluster.instances.values():
        supervisor = cluster.engine_supervisors[instance.address] if costs.shares_core else None
        cluster.world.set_processor(instance.address, _processor(costs.instance, supervisor))


def _other_cost_s(costs: ProcessCosts, to: Address, message: Message) -> float:
    if to.role == "dispatcher":
        return message_cost_s(costs.door, message)
    return control_cost_s(costs.control, message)


def control_cost_s(costs: MessageCosts, message: Message) -> float:
    """Seconds of CPU that a manager or a monitor spends on a message."""
    if isinstance(message, FleetView):
        return costs.step_s + costs.row_s * len(message.members)
    return costs.step_s if isinstance(message, REPORTS) else 0.0


def message_cost_s(costs: MessageCosts, message: Message) -> float:
    """Seconds of CPU that the receiver of a message spends on it."""
    if isinstance(message, StepDone | Tokens):
        return costs.step_s + costs.row_s * len(message.token)
    return costs.request_s if isinstance(message, Place | Submit) else 0.0


def _processor(costs: MessageCosts, supervisor: SimulatedEngineSupervisor | None) -> Processor:
    """A processor; on an engine's CPU the instance runs first, and the running step ends later by as much."""

    def turn_s(to: Address, message: Message) -> float:
        seconds = message_cost_s(costs, message)
        if supervisor is not None and seconds:
            supervisor.engine.runner.add_cpu_delay(seconds)
        return seconds

    return Processor(turn_s)
