"""The processors on which dunlin's own processes run, where what they take is felt: on CPUs, not beside a GPU.

Knows which messages cost something and who shares a core with whom. Costs are measured (`dunlin profile --host`).
"""

from dunlin.cost.models import HostCosts, MessageCosts
from dunlin.effects import Address, Message
from dunlin.messages.dispatch import Place, Tokens
from dunlin.messages.door import Submit
from dunlin.messages.engine import StepDone
from simulator.cluster.engine_supervisor import SimulatedEngineSupervisor
from simulator.cluster.process import Processor
from simulator.cluster.simulated import SimulatedCluster


def assign_processors(cluster: SimulatedCluster, costs: HostCosts) -> None:
    """Every instance gets a processor, which may be its engine's too; all dispatchers and clients share one."""
    door = Processor(lambda to, message: message_cost_s(costs.door, message))
    for core in cluster.dispatchers.values():
        cluster.world.set_processor(core.address, door)
    for instance in cluster.instances.values():
        seat = cluster.engine_supervisors[instance.address] if costs.shares_core else None
        cluster.world.set_processor(instance.address, _processor(costs.instance, seat))


def message_cost_s(costs: MessageCosts, message: Message) -> float:
    """What a message costs whoever takes it."""
    if isinstance(message, StepDone | Tokens):
        return costs.step_s + costs.row_s * len(message.token)
    return costs.request_s if isinstance(message, Place | Submit) else 0.0


def _processor(costs: MessageCosts, seat: SimulatedEngineSupervisor | None) -> Processor:
    """On an engine's core: the light process goes first, and the step that runs ends later by as much."""

    def turn_s(to: Address, message: Message) -> float:
        seconds = message_cost_s(costs, message)
        if seat is not None and seconds:
            seat.engine.runner.add_cpu_delay(seconds)
        return seconds

    return Processor(turn_s)
