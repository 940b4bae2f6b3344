"""Messages of resumed and idempotent requests, and a bench whose sends are easy to compare."""

from dataclasses import replace
from typing import Any

from dunlin.effects import Address, Send
from dunlin.messages.dispatch import Adopted
from dunlin.messages.door import Submit
from dunlin.messages.fleet import MemberView
from dunlin.messages.lifecycle import Admitted, Closed, FirstToken
from dunlin.messages.types import FinishReason, i32
from tests.services.dispatcher import factories
from tests.services.dispatcher.factories import submit

KEY = "req-7-9"


class Bench(factories.Bench):
    """A bench whose sends are `plain`."""

    def give(self, sender: Address, message: Any, at_s: float | None = None) -> list[Send]:
        return plain(super().give(sender, message, at_s))

    def fleet(self, *members: MemberView) -> "Bench":
        super().fleet(*members)
        return self


def resumed(received: tuple[int, ...] = (70, 71), **overrides: Any) -> Submit:
    return submit(**{"max_tokens": 6, "key": KEY, "received": i32(received), **overrides})


def adopted(*tokens: int, finish: FinishReason = FinishReason.RUNNING, **overrides: Any) -> Adopted:
    return Adopted(
        **{"request": 1, "attempt": 1, "key": KEY, "tokens": i32(tokens), "max_tokens": 6, **overrides}, finish=finish
    )


def plain(sent: list[Send]) -> list[Send]:
    """The sends without lifecycle events and without the reasons of `Admitted`, which have tests of their own."""
    kept = [send for send in sent if not isinstance(send.message, FirstToken | Closed)]
    return [
        replace(send, message=Admitted(send.message.request)) if isinstance(send.message, Admitted) else send
        for send in kept
    ]


def named(**overrides: Any) -> Submit:
    return submit(**{"idempotency": "k/0", "digest": b"d", "tenant": "t", **overrides})
