"""Bugs to plant in the dispatcher: the journal, the fences, who may read and use what."""

from collections.abc import Callable
from dataclasses import replace

from dunlin.effects import Address, Effect, Send
from dunlin.messages.dispatch import Tokens
from dunlin.messages.door import Delta, Submit, SubmitRejected
from dunlin.messages.fleet import FleetView
from dunlin.messages.types import FinishReason, i32
from services.dispatcher.admission.controller import AdmissionController
from services.dispatcher.admission.quotas import TenantAccount, TenantQuotas, _exceeds_remaining, _required
from services.dispatcher.core import DispatcherCore
from services.dispatcher.lifecycle.attempts import AttemptEvents
from services.dispatcher.lifecycle.completion import RequestCompletion
from services.dispatcher.lifecycle.deadlines import ReaderDeadlines
from services.dispatcher.lifecycle.joining import RequestJoins, remaining_delta
from services.dispatcher.placement.fleet_state import FleetState
from services.dispatcher.requests.journal import Journal
from services.dispatcher.requests.request import Request
from services.dispatcher.requests.token_rows import TokenRow
from tests.zoo.plant import Bug, skip, swap

LOSSES = ("lost", "returned", "suspect")
"""How the words begin that say why an attempt is over without an end."""


def _first_token_twice(
    original: Callable[[AttemptEvents, float, Address, TokenRow], list[Effect]],
    self: AttemptEvents,
    now_s: float,
    sender: Address,
    row: TokenRow,
) -> list[Effect]:
    request = self._journal.current_attempt(sender, row.request, row.attempt)
    is_first = request is not None and request.generated_tokens == 0
    effects = original(self, now_s, sender, row)
    if not is_first:
        return effects
    return [*effects, *(one for one in effects if isinstance(one, Send) and isinstance(one.message, Delta))]


def _without_gaps(
    original: Callable[[AttemptEvents, float, Address, Tokens], list[Effect]],
    self: AttemptEvents,
    now_s: float,
    sender: Address,
    message: Tokens,
) -> list[Effect]:
    """Tokens behind a gap are given the positions that are due."""
    positions, due = i32(), dict[int, int]()
    for number, attempt, position in zip(message.request, message.attempt, message.position, strict=False):
        request = self._journal.current_attempt(sender, number, attempt)
        if request is not None:
            position = min(position, due.get(number, len(request.tokens)))
            due[number] = position + 1
        positions.append(position)
    return original(self, now_s, sender, replace(message, position=positions))


def _take_back_unqueued(
    original: Callable[[Journal, Request, str], None], self: Journal, request: Request, lost: str
) -> None:
    original(self, request, lost)
    self._queue_of(request).remove(request)


def _take_back_short(
    original: Callable[[Journal, Request, str], None], self: Journal, request: Request, lost: str
) -> None:
    original(self, request, lost)
    if request.generated_tokens > 1 and lost.startswith(LOSSES):
        del request.tokens[-1]


def _any_attempt(original: object, self: Journal, instance: Address, number: int, attempt: int) -> Request | None:
    request = self._requests.get(number)
    return request if request is not None and request.instance is not None else None


def _too_soon_by_one(
    original: Callable[[TenantAccount, Submit], SubmitRejected | None], account: TenantAccount, submit: Submit
) -> SubmitRejected | None:
    requests, _ = _required(submit)
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
    hold = self._reservations.get(number)
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


def _any_monitor(original: object, self: FleetState, monitor: Address, view: FleetView) -> bool:
    if self._monitor != monitor:
        self._monitor, self._version = monitor, 0
    return view.version > self._version


def _tell_twice(
    original: Callable[[RequestCompletion, float, Request, FinishReason, str], list[Effect]],
    self: RequestCompletion,
    now_s: float,
    request: Request,
    finish: FinishReason,
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
        (swap(AttemptEvents._on_row, _first_token_twice),),
        seed=30000,
    ),
    Bug(
        "gap-delivered",
        "the end of a stream is overlooked, and a token that is not the next one is passed on",
        ("I1",),
        (
            # Streams are in order and a broken one ends what it carried: gaps come only where that is not seen.
            skip(RequestCompletion.requeue_lost, list, called_by=DispatcherCore._on_gone),
            swap(AttemptEvents.on_tokens, _without_gaps),
        ),
        seed=40478,
    ),
    Bug(
        "lost-journal-entry",
        "a request whose instance died is not queued again",
        ("I8", "I12"),
        (swap(Journal.requeue, _take_back_unqueued),),
        seed=184,
    ),
    Bug(
        "lost-token",
        "the last token that was delivered is not in the journal when the request moves on",
        ("I1",),
        (swap(Journal.requeue, _take_back_short),),
        seed=300188,
    ),
    Bug(
        "dropped-fence",
        "what an instance says of an old attempt counts",
        ("I2", "I1", "core"),
        (swap(Journal.current_attempt, _any_attempt),),
        seed=40282,
    ),
    Bug(
        "loss-unnoticed",
        "the end of an instance's stream is not the end of what it held",
        ("I12",),
        (skip(RequestCompletion.requeue_lost, list, called_by=DispatcherCore._on_gone),),
        seed=100193,
    ),
    Bug(
        "suspicion-ignored",
        "a suspect instance keeps its requests",
        ("I12",),
        (skip(RequestCompletion.requeue_lost, list, called_by=DispatcherCore._on_view),),
        seed=300211,
    ),
    Bug(
        "deadline-ignored",
        "a request's time runs out and nothing happens",
        ("I12", "I1"),
        (skip(RequestCompletion.abort_and_notify, list, called_by=ReaderDeadlines.on_deadline_due),),
        seed=100218,
    ),
    Bug(
        "absent-client-served",
        "a client leaves and its request runs on",
        ("I12",),
        (skip(RequestCompletion.abort, list, called_by=DispatcherCore._on_abort),),
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
                AdmissionController._queue_full,
                lambda original, self, queued, now_s, *times: original(self, queued // 100, now_s, *times),
            ),
        ),
        seed=100233,
    ),
    Bug(
        "quota-off-by-one",
        "a tenant runs one request more than it may",
        ("I11",),
        (swap(_exceeds_remaining, _too_soon_by_one),),
        seed=300247,
    ),
    Bug(
        "quota-never-returned",
        "a request that ended goes on counting",
        ("I11",),
        (swap(TenantQuotas.refund, _settle_nothing),),
        seed=30000,
    ),
    Bug(
        "old-monitor-believed",
        "a monitor that was replaced is believed again",
        ("I2",),
        (swap(FleetState._is_newer, _any_monitor),),
        seed=100342,
    ),
    Bug(
        "resumed-from-the-start",
        "a client that comes back with tokens is sent them again",
        ("I1",),
        (
            swap(
                remaining_delta,
                lambda original, request, submit, *finish: original(request, replace(submit, received=i32())),
                called_by=RequestJoins._add_reader,
            ),
        ),
        seed=100276,
    ),
    Bug(
        "prompts-are-free",
        "a tenant's tokens are counted without its prompts",
        ("I11",),
        (swap(TenantQuotas.reserve, _admit_without_prompt),),
        seed=20290,
    ),
    Bug(
        "end-told-twice",
        "a client whose time is over hears so twice",
        ("I1",),
        (swap(RequestCompletion.abort_and_notify, _tell_twice),),
        seed=100267,
    ),
)
