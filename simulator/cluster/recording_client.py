"""A client at a dispatcher's door that records its request, the answers, and the time of each token."""

from dataclasses import dataclass, field

from dunlin.effects import Address, Effect, Message
from dunlin.messages.door import Admitted, Delta, Submit, SubmitRejected
from dunlin.messages.types import FinishReason
from simulator.engine.errors import ContractBroken
from simulator.engine.token_model import VOCABULARY, PrefixTokenModel, TokenModel, expected_tokens


@dataclass
class RecordingClient:
    """The client of one request; `times_s[i]` is when `tokens[i]` came."""

    address: Address
    submit: Submit
    dispatcher: str = ""
    door: Address | None = None
    request: str = ""
    rejected: SubmitRejected | None = None
    tokens: list[int] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    finish: FinishReason = FinishReason.RUNNING
    detail: str = ""
    voice: TokenModel = field(default_factory=PrefixTokenModel)
    vocabulary: int = VOCABULARY

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        """Record an answer.

        Raises:
            ContractBroken: the request got another id, or a token after its end.
        """
        if isinstance(message, Admitted):
            is_same = self.request in ("", message.request)
            # Begun at two dispatchers under one name of its tenant's, it has two ids until they find each other.
            if not (is_same or self.submit.idempotency):
                raise ContractBroken(f"request {self.request} is called {message.request} now")
            self.request = self.request or message.request
        elif isinstance(message, SubmitRejected):
            self.rejected = message
        elif isinstance(message, Delta):
            if self.finish is not FinishReason.RUNNING:
                raise ContractBroken(f"request {self.request}: tokens after the end")
            self.tokens += message.tokens
            self.times_s += [now_s] * len(message.tokens)
            self.finish, self.detail = message.finish, message.detail
        return []

    @property
    def expected(self) -> list[int]:
        """The tokens of an exact stream of this request."""
        asked, count = self.submit.tokens, self.submit.max_tokens or 0
        return expected_tokens(self.voice, asked, len(asked), count, self.submit.sampling.seed, self.vocabulary)

    @property
    def is_exact(self) -> bool:
        """Whether every token came, once and in order, and the stream ended by its length."""
        return self.tokens == self.expected and self.finish is FinishReason.LENGTH
