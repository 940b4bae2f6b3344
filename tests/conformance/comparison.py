"""What two engines' answers must agree in: all but times, token ids, log-probabilities, and a row's exact place."""

from typing import Any

from dunlin.messages.engine import Interrupted, RemapDone, StepDone, TransferDone, Unsupported


def comparable(event: Any) -> tuple[Any, ...]:
    """The event without what may differ."""
    if isinstance(event, StepDone):
        rows = (event.sequence, event.finish, event.dropped, event.failed, event.left)
        counts = (event.prefill_rows, event.decode_rows, event.tokens_computed, event.cut_short)
        scores = event.scores
        scored = () if scores is None else (scores.sequence, scores.start, scores.count, scores.best)
        return ("StepDone", event.step, *map(tuple, rows), *counts, *map(tuple, scored))
    if isinstance(event, Interrupted):
        return (
            "Interrupted",
            event.ticket,
            tuple(event.sequence),
            tuple(event.step),
            tuple(event.parked),
            event.parked_step,
        )
    if isinstance(event, TransferDone):
        return ("TransferDone", event.ticket, event.status)
    if isinstance(event, RemapDone):
        return ("RemapDone", event.layout, event.phase, tuple(event.layers))
    if isinstance(event, Unsupported):
        return ("Unsupported", event.what, event.step, event.ticket, event.layout)
    return (type(event).__name__,)


def is_placed(event: Any, layers: int) -> bool:
    """Whether the rows of an `Interrupted` stand at places of a model of so many layers; a queued row at none."""
    if not isinstance(event, Interrupted):
        return True
    columns = zip(event.layer, event.block, event.parked, strict=True)
    return all(0 <= layer <= layers and block >= 0 for layer, block, _ in columns)
