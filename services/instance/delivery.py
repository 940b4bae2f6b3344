"""The tokens of one step, as one message per dispatcher. Pure translation of results into columns."""

from dataclasses import dataclass, field

from dunlin.effects import Address, Effect, Send
from dunlin.messages.dispatch import Tokens
from dunlin.messages.types import F32, I8, I32, I64, f32, i8, i32, i64
from services.instance.sequences import LIVES_ON
from services.instance.steps import Result


@dataclass(slots=True)
class Columns:
    """A `Tokens` being filled."""

    request: I64 = field(default_factory=i64)
    attempt: I32 = field(default_factory=i32)
    position: I64 = field(default_factory=i64)
    token: I32 = field(default_factory=i32)
    logprob: F32 = field(default_factory=f32)
    finish: I8 = field(default_factory=i8)
    top_count: I32 = field(default_factory=i32)
    top_token: I32 = field(default_factory=i32)
    top_logprob: F32 = field(default_factory=f32)

    def append(self, result: Result, token: int) -> None:
        """One row more."""
        sequence = result.sequence
        self.request.append(sequence.place.request)
        self.attempt.append(sequence.place.attempt)
        self.position.append(len(sequence.tokens) - 1)
        self.token.append(token)
        self.logprob.append(result.logprob)
        self.finish.append(result.finish)
        self.top_count.append(len(result.top_token) if result.top_token else 0)
        if result.top_token and result.top_logprob:
            self.top_token.extend(result.top_token)
            self.top_logprob.extend(result.top_logprob)

    def tokens(self) -> Tokens:
        """The message; without top entries their columns are empty."""
        return Tokens(
            self.request,
            self.attempt,
            self.position,
            self.token,
            self.logprob,
            self.finish,
            self.top_count if self.top_token else i32(),
            self.top_token,
            self.top_logprob,
        )


def deliveries(results: list[Result]) -> list[Effect]:
    """What each dispatcher gets of a step. A sequence that nobody wants any more yields nothing."""
    columns: dict[Address, Columns] = {}
    for result in results:
        sequence = result.sequence
        if result.token is not None and sequence.state in LIVES_ON:
            column = columns.get(sequence.dispatcher)
            if column is None:
                column = columns[sequence.dispatcher] = Columns()
            column.append(result, result.token)
    return [Send(dispatcher, column.tokens()) for dispatcher, column in columns.items()]
