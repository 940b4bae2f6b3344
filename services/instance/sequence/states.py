"""The states of a sequence of one instance, and which may follow which."""

from enum import Enum


class SequenceState(Enum):
    """Where a sequence is. See `TRANSITIONS`."""

    WAITING = "waiting"  # for slots; new, or preempted (then perhaps with a region in the host tier)
    RUNNING = "running"
    PARKED = "parked"  # its row left a step and waits in the engine to be resumed; no step names it
    DRAINING = "draining"  # preempted: outstanding steps still name it
    ASKING = "asking"  # for room in the host tier
    SPILLING = "spilling"  # its KV moves to the host tier
    RESTORING = "restoring"  # its KV moves back
    SPREAD = "spread"  # members of the group that this instance leads have it, or are asked to; no own step names it
    LEAVING = "leaving"  # no more rows here: another instance is about to continue it
    ENDING = "ending"  # no more tokens are wanted; a step or a region copy still uses its slots
    ENDED = "ended"


TRANSITIONS: dict[SequenceState, tuple[SequenceState, ...]] = {
    SequenceState.WAITING: (
        SequenceState.RUNNING,
        SequenceState.RESTORING,
        SequenceState.SPREAD,
        SequenceState.LEAVING,
        SequenceState.ENDED,
    ),
    SequenceState.RUNNING: (
        SequenceState.PARKED,
        SequenceState.DRAINING,
        SequenceState.WAITING,
        SequenceState.LEAVING,
        SequenceState.ENDING,
        SequenceState.ENDED,
    ),
    SequenceState.PARKED: (SequenceState.RUNNING, SequenceState.WAITING, SequenceState.ENDED),
    SequenceState.DRAINING: (
        SequenceState.ASKING,
        SequenceState.WAITING,
        SequenceState.RUNNING,
        SequenceState.ENDING,
        SequenceState.ENDED,
    ),
    SequenceState.ASKING: (SequenceState.SPILLING, SequenceState.WAITING, SequenceState.RUNNING, SequenceState.ENDED),
    SequenceState.SPILLING: (SequenceState.WAITING, SequenceState.RUNNING, SequenceState.ENDING, SequenceState.ENDED),
    SequenceState.RESTORING: (SequenceState.RUNNING, SequenceState.WAITING, SequenceState.ENDING, SequenceState.ENDED),
    SequenceState.SPREAD: (SequenceState.ENDING,),
    SequenceState.LEAVING: (SequenceState.RUNNING, SequenceState.WAITING, SequenceState.ENDING, SequenceState.ENDED),
    SequenceState.ENDING: (SequenceState.ENDED,),
    SequenceState.ENDED: (),
}


WANTS_TOKENS = (SequenceState.RUNNING, SequenceState.SPREAD, SequenceState.DRAINING, SequenceState.LEAVING)
"""Outstanding steps may name it, and its dispatcher wants the tokens."""


class IllegalTransition(RuntimeError):
    """A sequence cannot go from its state to that one; it stays what it was."""
