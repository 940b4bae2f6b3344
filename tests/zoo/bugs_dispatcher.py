"""Bugs to plant in the dispatcher: the journal, the fences, who may read and use what."""

from collections.abc import Callable
from dataclasses import replace

from dunlin.effects import Address, Effect, Send
from dunlin.messages.dispatch import Tokens
from dunlin.messages.door import Delta, Rejected, Submit
from dunlin.messages.fleet import FleetView
from dunlin.messages.types import Finish, i32
from services.dispatcher.admission import Admission
from services.dispatcher.attempts import Attempts
from services.dispatcher.core import DispatcherCore
from services.dispatcher.endings import Endings
from services.dispatcher.fleet import Fleet
from services.dispatcher.joining import Joining, rest
from services.dispatcher.journal import Journal, Request
from services.dispatcher.quotas import Account, TenantQuotas, _too_soon, _wanted
from services.dispatcher.tokens import Row
from tests.zoo.plant import Bug, skip, swap

LOSSES = ("lost", "returned", "suspect")
"""How the words begin that say why an attempt is over without an end."""


def _first_token_twice(
    original: Callable[[Attempts, float, Address, Row], list[Effect]],
    self: Attempts,
    now_s: float,
    sender: Address,
    row: Row,
) -> list[Effect]:
    request = self._journal.current(sender, row.request, row.attempt)
    is_first = request is not None and request.generated == 0
    effects = original(self, now_s, sender, row)
    if not is_first:
        return effects
    return [*effects, *(one for one in effects if isinstance(one, Send) and isinstance(one.message, Delta))]


def _without_gaps(
    original: Callable[[Attempts, float, Address, Tokens], list[Effect]],
    self: Attempts,
    now_s: float,
    sender: Address,
    message: Tokens,
) -> list[Effect]:
    """Tokens behind a gap are given the positions that are due."""
    positions, due = i32(), dict[int, int]()
    for number, attempt, position in zip(message.request, message.attempt, message.position, strict=False):
        request = self._journal.current(sender, number, attempt)
        if request is not None:
            position = min(position, due.get(number, len(request.tokens)))
            due[number] = position + 1
        positions.append(position)
    return original(self, now_s, sender, replace(message, position=positions))


def _take_back_unqueued(
    original: Callable[[Journal, Request, str], None], self: Journal, request: Request, lost: str
) -> None:
    original(self, request, lost)
    self._again.remove(request.number)


def _take_back_short(
    original: Callable[[Journal, Request, str], None], self: Journal, request: Request, lost: str
) -> None:
    original(self, request, lost)
    if request.generated > 1 and lost.startswith(LOSSES):
        del request.tokens[-1]


def _any_attempt(original: object, self: Journal, instance: Address, number: int, attempt: int) -> Request | None:
    request = self._requests.get(number)
    return request if request is not None and request.instance is not None else None


def _too_soon_by_one(
    original: Callable[[Account, Submit], Rejected | None], account: Account, submit: Submit
) -> Rejected | None:
    requests, _ = _wanted(submit)
    account.open -= requests
    try:
        return original(account, submit)
    finally:
        account.open += requests


def _settle_nothing(
    original: Callable[[TenantQuotas, int, int, float], None],
    self: TenantQuotas,
    number: int,
    generated: int,
    now_s: float,
) -> None:
    hold = self._holds.get(number)
    original(self, number, generated, now_s)
    if hold is not None:
        hold.account.open += 1


def _admit_without_prompt(
    original: Callable[[TenantQuotas, int, Submit], None], self: TenantQuotas, number: int, submit: Submit
) -> None:
    original(self, number, submit)
    account = self._accounts.get(submit.tenant)
    if account is not None and account.tokens is not None:
        account.tokens.level += len(submit.tokens)


def _any_monitor(original: object, self: Fleet, monitor: Address, view: FleetView) -> bool:
    if self._monitor != monitor:
        self._monitor, self._version = monitor, 0
    return view.version > self._version


def _tell_twice(
    original: Callable[[Endings, float, Request, Finish, str], list[Effect]],
    self: Endings,
    now_s: float,
    request: Request,
    finish: Finish,
    text: str,
) -> list[Effect]:
    readers = len(request.readers)
    effects = original(self, now_s, request, finish, text)
    return [*effects[:readers], *effects]


BUGS = (
    Bug(
        "double-delivery",
        "a client's first token is sent twice",
        ("I1",),
        (swap(Attempts._on_row, _first_token_twice),),
        seed=30000,
    ),
    Bug(
        "gap-delivered",
        "the end of a stream is overlooked, and a token that is not the next one is passed on",
        ("I1",),
        (
            # Streams are in order and a broken one ends what it carried: gaps come only where that is not seen.
            skip(Endings.lost, list, called_by=DispatcherCore._on_gone),
            swap(Attempts.on_tokens, _without_gaps),
        ),
        seed=100182,
    ),
    Bug(
        "lost-journal-entry",
        "a request whose instance died is not queued again",
        ("I8", "I12"),
        (swap(Journal.take_back, _take_back_unqueued),),
        seed=100169,
    ),
    Bug(
        "lost-token",
        "the last token that was delivered is not in the journal when the request moves on",
        ("I1",),
        (swap(Journal.take_back, _take_back_short),),
        seed=100182,
    ),
    Bug(
        "dropped-fence",
        "what an instance says of an old attempt counts",
        ("I2", "I1", "core"),
        (swap(Journal.current, _any_attempt),),
        seed=100182,
    ),
    Bug(
        "loss-unnoticed",
        "the end of an instance's stream is not the end of what it held",
        ("I12",),
        (skip(Endings.lost, list, called_by=DispatcherCore._on_gone),),
        seed=100193,
    ),
    Bug(
        "suspicion-ignored",
        "a suspect instance keeps its requests",
        ("I12",),
        (skip(Endings.lost, list, called_by=DispatcherCore._on_view),),
        seed=100199,
    ),
    Bug(
        "deadline-ignored",
        "a request's time runs out and nothing happens",
        ("I12", "I1"),
        (skip(Endings.tell, list, called_by=DispatcherCore._on_deadline_due),),
        seed=100218,
    ),
    Bug(
        "absent-client-served",
        "a client leaves and its request runs on",
        ("I12",),
        (skip(Endings.stop, list, called_by=DispatcherCore._on_withdraw),),
        seed=100211,
    ),
    Bug(
        "foreign-cancel",
        "a tenant cancels another's request by its id",
        ("I1",),
        (
            swap(
                DispatcherCore._on_cancel_by_id,
                lambda original, self, now_s, sender, message: original(
                    self, now_s, sender, replace(message, tenant=None)
                ),
            ),
        ),
        seed=100232,
    ),
    Bug(
        "full-queue-taken",
        "a queue that is full takes a hundred times as many",
        ("I11",),
        (
            swap(
                Admission._full,
                lambda original, self, submit, queued, now_s: original(self, submit, queued // 100, now_s),
            ),
        ),
        seed=100233,
    ),
    Bug(
        "quota-off-by-one",
        "a tenant runs one request more than it may",
        ("I11",),
        (swap(_too_soon, _too_soon_by_one),),
        seed=40005,
    ),
    Bug(
        "quota-never-returned",
        "a request that ended goes on counting",
        ("I11",),
        (swap(TenantQuotas.settle, _settle_nothing),),
        seed=30000,
    ),
    Bug(
        "old-monitor-believed",
        "a monitor that was replaced is believed again",
        ("I2",),
        (swap(Fleet._is_news, _any_monitor),),
        seed=100342,
    ),
    Bug(
        "resumed-from-the-start",
        "a client that comes back with tokens is sent them again",
        ("I1",),
        (swap(rest, lambda original, request, received, *finish: original(request, 0), called_by=Joining._read),),
        seed=100276,
    ),
    Bug(
        "prompts-are-free",
        "a tenant's tokens are counted without its prompts",
        ("I11",),
        (swap(TenantQuotas.admit, _admit_without_prompt),),
        seed=100837,
    ),
    Bug(
        "end-told-twice",
        "a client whose time is over hears so twice",
        ("I1",),
        (swap(Endings.tell, _tell_twice),),
        seed=100267,
    ),
)
