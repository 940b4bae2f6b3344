"""What the processes around engines take of their CPUs where each has one of its own. Pure data, measured.

The part of the instance is in the engine's overhead (`engine_overheads`), which hides nothing behind a step.
"""

from dunlin.cost.processes import MessageCosts, ProcessCosts

DISPATCHING = ProcessCosts(
    instance=MessageCosts(),
    door=MessageCosts(step_s=22e-6, row_s=1.1e-6, request_s=125e-6),
    hop_s=0.0,
    shares_core=False,
)
"""A dispatcher: a message of tokens over gRPC, each row in it, and a call of a client or for an instance."""
