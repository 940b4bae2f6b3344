"""Why an attempt was refused, as its dispatcher and `dunlin explain` are told. Decides nothing."""

from dunlin.effects import Address, Effect, Send
from dunlin.messages.dispatch import Place, Refusal, Refused
from dunlin.messages.types import Figure, RejectedOption, Why


def refuse(
    sender: Address, place: Place, reason: Refusal, *figures: Figure, because: str = "", limit_tokens: int = 0
) -> Effect:
    """The refusal of an attempt; `because` is more particular than what its reason says. `limit_tokens`: see
    `Refused`.
    """
    why = Why("admission", f"refuse: {reason.name}", figures, (RejectedOption("accept", because or _BECAUSE[reason]),))
    return Send(sender, Refused(place.request, place.attempt, reason, why, limit_tokens))


_BECAUSE = {
    Refusal.FULL: "the waiting queue is full",
    Refusal.TOO_LONG: "it can never fit here",
    Refusal.NOT_READY: "no engine runs",
    Refusal.NOT_IN_PLAN: "no order of the global manager has come",
    Refusal.STALE: "this attempt or a newer one is here",
    Refusal.DRAINING: "it is being emptied",
    Refusal.NO_ADAPTER: "it has not the adapter",
}
