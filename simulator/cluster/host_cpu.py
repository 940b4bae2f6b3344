"""The CPUs of dunlin's own processes, whose time matters where engines run on CPUs too.

It assigns processors and prices messages. Prices are measured (`dunlin profile --host`).
"""

from dunlin.cost.models import MessageCosts, ProcessCosts
from dunlin.effects import Address, Message
from dunlin.messages.dispatch import Place, Tokens
from dunlin.messages.door import Submit
from dunlin.messages.engine import StepDone
from simulator.cluster.engine_supervisor import SimulatedEngineSupervisor
from simulator.cluster.process import Processor
from simulator.cluster.simulated import SimulatedCluster


def assign_processors(cluster: SimulatedCluster, costs: ProcessCosts) -> None:
    """Give each instance a processor, its engine's if `costs.shares_core`, and all dispatchers a common one."""
    door = Processor(lambda to, message: message_cost_s(costs.door, message))
    for core in cluster.dispatchers.values():
        cluster.world.set_processor(core.address, door)
    for instance in cluster.instances.values():
        supervisor = cluster.engine_supervisors[instance.address] if costs.shares_core else None
        cluster.world.set_processor(instance.address, _processor(costs.instance, supervisor))


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
