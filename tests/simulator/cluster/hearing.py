"""A receiver in a world that records what reaches it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dunlin.effects import Address, Effect, Message


@dataclass(frozen=True)
class Word:
    text: str = "word"
    why: object = None


@dataclass
class Ear:
    """Records what it hears and when; does what `answer` says."""

    answer: Callable[[Message], Sequence[Effect]] = lambda message: ()
    heard: list[tuple[float, Address, Message]] = field(default_factory=list)

    def receive(self, now_s: float, sender: Address, message: Message) -> Sequence[Effect]:
        self.heard.append((round(now_s, 9), sender, message))
        return self.answer(message)

    def words(self) -> list[tuple[float, str]]:
        return [(at_s, message.text) for at_s, _, message in self.heard if isinstance(message, Word)]

    def kinds(self) -> list[str]:
        return [type(message).__name__ for *_, message in self.heard]
