"""Which requests may have crashed an engine, and which are poison. Pure bookkeeping of blame.

Only the rows of the step that was executing are suspects. They run again alone, one after the other, until each is past
where the engine crashed; one that crashes an engine alone twice is poison. Knows no engine, no slot and no dispatcher.
"""

from collections.abc import Iterable

from dunlin.messages.dispatch import IN_COMPANY, POISON, suspicion_after_crash
from dunlin.messages.types import Figure, RejectedOption, Why
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.states import SequenceState


def blame_crash(rows: Iterable[tuple[Sequence, int]], is_alone: bool | None = None) -> list[Sequence]:
    """Blame these (sequence, stop of its row) for a crashed step; returns those that are poison now.

    `is_alone`: whether the step had no other row; by default, whether there is one of them.
    """
    suspects = list(rows)
    is_alone = len(suspects) == 1 if is_alone is None else is_alone
    for sequence, stop in suspects:
        sequence.suspicion = suspicion_after_crash(sequence.suspicion, is_alone)
        sequence.trial_stop = stop
    return [sequence for sequence, _ in suspects if is_poison(sequence) and sequence.state is not SequenceState.ENDING]


def is_poison(sequence: Sequence) -> bool:
    """Whether the sequence crashed too many engines while it ran alone."""
    return sequence.suspicion >= POISON


def runnable(running: list[Sequence]) -> list[Sequence]:
    """The sequences that may be in the next step: all, or only the first that is on trial."""
    on_trial = [sequence for sequence in running if sequence.trial_stop > 0]
    return on_trial[:1] or running


def clear_if_past_crash(sequence: Sequence) -> None:
    """Its step was answered: past the position of the crash it runs with others. Crashes alone stay counted."""
    if 0 < sequence.trial_stop <= sequence.valid:
        sequence.trial_stop = 0
        sequence.suspicion = 0 if sequence.suspicion == IN_COMPANY else sequence.suspicion


def poison_reason(sequence: Sequence) -> Why:
    """Why a poison request is stopped."""
    crashes = sequence.suspicion - IN_COMPANY
    figures = (Figure("crashes_alone", crashes), Figure("tokens", len(sequence.tokens)))
    rejected = RejectedOption("run it again", f"{POISON - IN_COMPANY} are enough")
    return Why("poison", f"it crashed {crashes} engines while it ran alone", figures, (rejected,))
