"""Tenants of the twin that keep a number of requests open for ever, with the tokens that each was served."""

from itertools import count

from dunlin.effects import Address, Effect, Gone, Joined, Message, Send
from dunlin.messages.door import Delta, Submit, SubmitRejected
from dunlin.messages.types import FinishReason, RequestClass, SamplingParams, i32
from simulator.cluster.scripted import ScriptedCluster


class Backlog:
    """One tenant: `open_requests` at a time, of `prompt` and at most `generated` tokens each.

    `served` counts the tokens of finished prompts and of answers as they come; `is_over`: no request follows one
    that ends. `stop_at`: the client leaves after so many tokens of an answer.
    """

    def __init__(
        self,
        cluster: ScriptedCluster,
        tenant: str,
        open_requests: int,
        prompt: int,
        generated: int,
        stop_at: int | None = None,
        **settings: object,
    ) -> None:
        self.served = 0
        self.is_over = False
        self._cluster = cluster
        self._tenant = tenant
        self._prompt, self._stop_at = prompt, stop_at or generated
        self._settings = {"max_tokens": generated, "request_class": RequestClass.BATCH, **settings}
        self._numbers = count()
        for _ in range(open_requests):
            self._begin()

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        """Nothing comes for the tenant itself."""
        return []

    def answered(self, client: "_Client", delta: Delta) -> None:
        """Tokens came for one of the requests."""
        self.served += len(delta.tokens)
        if not client.tokens and delta.tokens:
            self.served += self._prompt
        client.tokens += len(delta.tokens)
        assert delta.finish in (FinishReason.RUNNING, FinishReason.LENGTH), delta
        if client.tokens >= self._stop_at:
            self._cluster.world.kill(client.address, "")
            if not self.is_over:
                self._begin()

    def _begin(self) -> None:
        number = next(self._numbers)
        client = _Client(self, Address("client", f"{self._tenant}-{number}"), self._submit(number))
        self._cluster.world.add(client.address, client)
        doors = self._cluster.doors()
        self._cluster.world.connect(client.address, doors[number % len(doors)])

    def _submit(self, number: int) -> Submit:
        # Unlike each other from the first token: no prefix is shared.
        tokens = [ord(self._tenant[-1]) % 50, *((number >> shift) % 50 for shift in (0, 4, 8, 12))]
        prompt = (tokens * self._prompt)[: self._prompt]
        return Submit(i32(prompt), sampling=SamplingParams(seed=number), tenant=self._tenant, **self._settings)  # type: ignore[arg-type]


class _Client:
    """One request's client."""

    def __init__(self, backlog: Backlog, address: Address, submit: Submit) -> None:
        self.address = address
        self.tokens = 0
        self._backlog = backlog
        self._submit = submit

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        """Send the request when the stream is open, and pass its answer on."""
        assert not isinstance(message, SubmitRejected | Gone), message
        if isinstance(message, Joined):
            return [Send(sender, self._submit)]
        if type(message) is Delta:
            self._backlog.answered(self, message)
        return []
