"""What a core sends to itself is taken in at once, in order, and does not go on for ever."""

from dataclasses import dataclass

from dunlin.effects import Address, After, Effect, Message, Send
from services.instance.group.loopback import MAX_DELIVERIES, Loopback

ME = Address("instance", "i", 5)
OTHER = Address("instance", "j", 6)


@dataclass(frozen=True)
class Word:
    text: str


class Echo:
    """Says to itself and to another what a word holds, letter by letter."""

    def __init__(self) -> None:
        self.taken: list[tuple[float, Address, str]] = []

    def take(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        assert isinstance(message, Word)
        self.taken.append((now_s, sender, message.text))
        if len(message.text) == 1:
            return [Send(OTHER, message)]
        return [effect for letter in message.text for effect in (Send(ME, Word(letter)), After(1.0, Word(letter)))]


def test_words_to_itself_are_taken_in_order_within_the_same_receive() -> None:
    echo = Echo()
    effects = Loopback(ME, echo.take).receive(2.0, OTHER, Word("abc"))
    assert echo.taken == [(2.0, OTHER, "abc"), (2.0, ME, "a"), (2.0, ME, "b"), (2.0, ME, "c")]
    after = [After(1.0, Word(letter)) for letter in "abc"]
    assert effects == [*after, *(Send(OTHER, Word(letter)) for letter in "abc")]


def test_a_core_that_never_stops_talking_to_itself_is_heard_out_later() -> None:
    def take(now_s: float, sender: Address, message: Message) -> list[Effect]:
        return [Send(ME, message), Send(OTHER, message)]

    effects = Loopback(ME, take).receive(0.0, OTHER, Word("x"))
    assert len([effect for effect in effects if isinstance(effect, Send)]) == MAX_DELIVERIES + 1
    assert [effect for effect in effects if isinstance(effect, After)] == [After(0.0, Word("x"))]
