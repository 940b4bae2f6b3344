"""The world: order, delays, ends of streams and processes, clocks, processors and disturbances, at exact times."""

from collections.abc import Callable

from dunlin.effects import Address, After, Effect, Gone, Joined, Message, Send, SendEach
from simulator.cluster.process import Processor
from simulator.cluster.world import World
from tests.simulator.cluster.hearing import Ear, Word

A, B, C = (Address("test", name, number) for number, name in enumerate("abc", 1))


def says(to: Address, *texts: str) -> Callable[[Message], list[Effect]]:
    """On "go", these words."""
    return lambda message: [Send(to, Word(text)) for text in texts] if message == Word("go") else []


def pair(*texts: str, latency_s: float = 0.001) -> tuple[World, Ear, Ear]:
    """A, who says `texts` to B on "go", and B; joined, and both know it."""
    world, one, other = World(latency_s), Ear(says(B, *texts)), Ear()
    world.add(A, one)
    world.add(B, other)
    world.connect(A, B)
    world.run_to(1.0)
    return world, one, other


def test_both_ends_hear_of_a_stream_and_words_arrive_in_order_after_the_latency() -> None:
    world, one, other = pair("x", "y", latency_s=0.25)
    assert one.heard == [(0.25, B, Joined())]
    world.post(A, A, Word("go"), 0.0)
    world.run_to(2.0)
    assert other.words() == [(1.25, "x"), (1.25, "y")]
    assert world.now_s == 2.0


def test_a_timer_comes_after_exactly_its_delay_from_oneself() -> None:
    world = World()
    ear = Ear(lambda message: [After(0.5, Word("timer"))] if message == Word("go") else [])
    world.add(A, ear)
    world.post(B, A, Word("go"), 1.0)
    world.run_to(5.0)
    assert ear.heard == [(1.0, B, Word("go")), (1.5, A, Word("timer"))]


def test_messages_without_a_stream_are_dropped_and_counted() -> None:
    world, _, other = pair()
    world.disconnect(A, B)
    world.add(C, Ear(says(B, "x")))
    world.post(C, C, Word("go"))
    world.run_to(2.0)
    assert other.words() == []
    assert world.dropped["Word"] == 1


def test_the_end_of_a_stream_loses_what_is_in_flight_and_both_learn_it() -> None:
    world, one, other = pair("x")
    world.post(A, A, Word("go"), 0.0)
    world.run_to(1.0005)
    world.disconnect(A, B, "cut")
    world.connect(A, B)
    world.run_to(2.0)
    assert other.kinds() == ["Joined", "Gone", "Joined"]
    assert one.heard[2:] == [(1.0015, B, Gone("cut")), (1.0015, B, Joined())]


def test_an_end_that_never_heard_of_the_stream_does_not_hear_of_its_end() -> None:
    world = World()
    one = Ear()
    world.add(A, one)
    world.add(B, Ear())
    world.connect(A, B)
    world.disconnect(A, B)
    world.run_to(1.0)
    assert one.heard == []


def test_a_process_sends_on_a_stream_only_after_it_is_joined() -> None:
    world, one, other = pair("x")
    world.pause(A)
    world.post(A, A, Word("go"), 0.0)
    world.run_to(2.0)
    world.disconnect(A, B)
    world.connect(A, B)
    world.run_to(3.0)
    world.resume(A)
    world.run_to(4.0)
    assert one.kinds() == ["Joined", "Word", "Gone", "Joined"]
    assert other.words() == []
    assert world.dropped["Word"] == 1
    world.post(A, A, Word("go"), 0.0)
    world.run_to(5.0)
    assert other.words() == [(4.001, "x")]


def test_a_killed_process_hears_nothing_more_and_its_successor_nothing_of_its_timers() -> None:
    world, one, other = pair()
    world.post(B, B, Word("old timer"), 1.0)
    world.kill(B)
    assert not world.is_up(B)
    successor = Ear()
    world.add(B, successor)
    world.run_to(5.0)
    assert one.kinds() == ["Joined", "Gone"]
    assert other.kinds() == ["Joined"]
    assert successor.heard == []
    assert world.dropped["no process"] == 1


def test_what_reaches_a_stopped_process_waits_in_order() -> None:
    world, one, other = pair("x", "y")
    world.pause(B)
    world.post(A, A, Word("go"), 0.0)
    world.run_to(3.0)
    assert other.words() == []
    world.resume(B)
    world.run_to(4.0)
    assert other.words() == [(3.0, "x"), (3.0, "y")]
    assert one.kinds() == ["Joined", "Word"]


def test_a_stream_that_ended_while_its_end_slept_gives_it_the_end_alone() -> None:
    world, _, other = pair("x")
    world.pause(B)
    world.post(A, A, Word("go"), 0.0)
    world.run_to(2.0)
    world.disconnect(A, B)
    world.run_to(3.0)
    world.resume(B)
    world.run_to(4.0)
    assert other.kinds() == ["Joined", "Gone"]


def test_a_skewed_clock_shows_other_times_and_its_timers_run_with_it() -> None:
    world = World()
    ear = Ear(lambda message: [After(1.0, Word("timer"))] if message == Word("go") else [])
    world.add(A, ear)
    world.run_to(10.0)
    world.set_clock(A, offset_s=100.0, rate=2.0)
    world.post(B, A, Word("go"), 1.0)
    world.run_to(20.0)
    assert ear.heard == [(112.0, B, Word("go")), (113.0, A, Word("timer"))]


def test_a_processor_takes_one_message_at_a_time_and_what_follows_comes_later() -> None:
    world = World(0.0)
    one, other = Ear(says(B, "x")), Ear()
    world.add(A, one)
    world.add(B, other)
    world.connect(A, B)
    world.run_to(1.0)
    processor = Processor(lambda to, message: 0.5)
    world.set_processor(A, processor)
    world.set_processor(B, processor)
    world.post(A, A, Word("go"), 0.0)
    world.post(A, A, Word("go"), 0.0)
    world.run_to(9.0)
    assert [at_s for at_s, _ in one.words()] == [1.0, 1.5]
    assert [at_s for at_s, _ in other.words()] == [2.0, 2.5]
    assert processor.busy_s == 2.0


def test_what_is_said_on_a_stalled_stream_waits_in_order_but_not_what_is_under_way() -> None:
    world, _, other = pair("x", "y")
    world.post(A, A, Word("go"), 0.0)
    world.run_to(1.0)
    world.stall(B, A)
    world.post(A, A, Word("go"), 0.5)
    world.run_to(3.0)
    assert other.words() == [(1.001, "x"), (1.001, "y")]
    world.unstall(A, B)
    world.run_to(4.0)
    assert other.words()[2:] == [(3.001, "x"), (3.001, "y")]


def test_a_stalled_stream_that_ends_loses_what_waited() -> None:
    world, _, other = pair("x")
    world.stall(A, B)
    world.post(A, A, Word("go"), 0.0)
    world.run_to(2.0)
    world.disconnect(A, B)
    world.connect(A, B)
    world.unstall(A, B)
    world.post(A, A, Word("go"), 1.0)
    world.run_to(4.0)
    assert other.kinds() == ["Joined", "Gone", "Joined", "Word"]
    assert other.words() == [(3.001, "x")]


def test_a_severed_stream_loses_everything_and_tells_neither_end() -> None:
    world, one, other = pair("x")
    world.post(A, A, Word("go"), 0.0)
    world.run_to(1.0)
    assert world.sever(A, B)
    world.post(A, A, Word("go"), 0.0)
    world.run_to(2.0)
    assert (one.kinds(), other.kinds()) == (["Joined", "Word", "Word"], ["Joined"])
    assert world.dropped["Word"] == 1
    assert not world.sever(A, B)
    assert not world.is_connected(B, A)


def test_a_message_by_hand_keeps_the_order_of_its_stream_and_ends_with_it() -> None:
    world, _, other = pair("x")
    late_s = iter([0.5, 0.0])
    world.extra_s = lambda sender, to: next(late_s)
    world.post(A, A, Word("go"), 0.0)
    world.run_to(1.0)
    world.post(A, B, Word("after"))
    world.run_to(2.0)
    assert other.words() == [(1.501, "x"), (1.501, "after")]
    world.extra_s = None
    world.post(A, B, Word("lost"))
    world.disconnect(A, B)
    world.run_to(3.0)
    assert other.kinds()[-1] == "Gone"


def test_a_stopped_process_receives_what_was_posted_first_and_then_all_in_order() -> None:
    world, _, other = pair("x")
    world.pause(B)
    world.post(A, A, Word("go"), 0.0)
    world.run_to(2.0)
    world.post_first(C, B, Word("first"))
    world.post_first(C, B, Word("second"))
    world.post(C, B, Word("last"), 1.0)
    world.run_to(3.0)
    world.resume(B)
    world.run_to(4.0)
    assert other.words() == [(3.0, "first"), (3.0, "second"), (3.0, "x"), (3.0, "last")]
    world.post_first(C, B, Word("awake"))
    world.run_to(5.0)
    assert other.words()[-1] == (4.001, "awake")


def test_a_clock_that_changes_its_pace_goes_on_from_what_it_shows() -> None:
    world, _, other = pair()
    world.set_clock(B, offset_s=100.0, rate=2.0)
    world.run_to(2.0)
    assert world.clock_s(B) == 102.0 + 1.0
    world.set_clock(B, world.clock_s(B) - world.now_s, rate=0.5)
    world.post(A, B, Word("x"), 4.0)
    world.run_to(9.0)
    assert other.words() == [(103.0 + 2.0, "x")]


def test_the_hooks_run_before_and_after_each_delivery() -> None:
    world, _, other = pair("x")
    seen: list[tuple[str, int]] = []
    world.before = lambda event: seen.append(("before", len(other.heard)))
    world.on_delivered = lambda event: seen.append(("after", len(other.heard)))
    world.post(A, B, Word("x"))
    world.run_to(2.0)
    assert seen == [("before", 1), ("after", 2)]


def test_latency_may_depend_on_the_ends() -> None:
    world = World(lambda one, other: 0.5 if C in (one, other) else 0.1)
    ears = {address: Ear() for address in (A, B, C)}
    for address, ear in ears.items():
        world.add(address, ear)
    world.connect(A, B)
    world.connect(A, C)
    world.run_to(1.0)
    assert ears[A].heard == [(0.1, B, Joined()), (0.5, C, Joined())]


def test_all_that_a_core_sends_is_told_and_what_has_a_reason_is_a_decision() -> None:
    world = World()
    world.keep_sent = False
    decided: list[Message] = []
    world.on_decided = lambda at_s, sender, to, message: decided.append(message)
    sent: list[tuple[float, Message]] = []
    world.on_sent = lambda at_s, sender, to, message: sent.append((at_s, message))
    because = Word("because", why="so")
    gone, nobody = Address("client", "gone"), Address("instance", "nobody")
    sends = [Send(B, Word()), Send(B, because), Send(gone, because), Send(gone, Word()), Send(nobody, because)]
    world.add(A, Ear(lambda message: sends if message == Word("go") else []))
    world.add(B, Ear())
    world.connect(A, B)
    world.run_to(1.0)
    world.post(A, A, Word("go"))
    world.run_to(2.0)
    assert decided == [because, because], "one about a client that left, too, and none to a process that is not there"
    assert sent == [(1.0 + 0.001, Word()), (1.0 + 0.001, because)]
    assert world.sent == []


def test_messages_of_one_time_come_in_order_and_each_counts_whether_watched_or_not() -> None:
    def run(is_watched: bool) -> tuple[list[tuple[float, str, str]], int]:
        world, heard = World(0.5), list[tuple[float, str, str]]()
        world.keep_sent = is_watched

        def hears(name: str) -> Callable[[Message], list[Effect]]:
            def react(message: Message) -> list[Effect]:
                if isinstance(message, Word):
                    heard.append((world.now_s, name, message.text))
                    if message == Word("1"):
                        world.kill(B)  # what comes for it after this is lost
                return []

            return react

        def fan(message: Message) -> list[Effect]:
            if message != Word("go"):
                return []
            words = [Send(to, Word(str(number))) for number, to in enumerate((B, C, B, C))]
            return [*words[:2], After(0.5, Word("timer")), *words[2:]]

        for address, ear in ((A, Ear(fan)), (B, Ear(hears("b"))), (C, Ear(hears("c")))):
            world.add(address, ear)
            if address != A:
                world.connect(A, address)
        world.run_to(1.0)
        world.post(A, A, Word("go"), 0.0)
        world.run_to(5.0)
        return heard, world.delivered

    assert run(True) == run(False)
    assert [(name, text) for _, name, text in run(False)[0]] == [("b", "0"), ("c", "1"), ("c", "3")]


def test_what_watches_one_kind_of_message_sees_it_alone_also_among_others_of_its_time() -> None:
    world, _, other = pair("1", "2")
    world.keep_sent = False  # so that both words are one event
    seen: list[tuple[Message, int]] = []
    world.on_kind[Word] = lambda event: seen.append((event.message, len(other.heard)))
    world.post(A, A, Word("go"), 0.0)
    world.connect(A, C)
    world.run_to(2.0)
    assert seen == [(Word("go"), 1), (Word("1"), 2), (Word("2"), 3)]


def test_what_comes_at_once_waits_for_a_process_that_stops_between() -> None:
    world, _, other = pair("1", "2")
    world.keep_sent = False
    world.on_kind[Word] = lambda event: world.pause(B) if event.message == Word("1") else None
    world.post(A, A, Word("go"), 0.0)
    world.run_to(2.0)
    assert other.heard[-1][-1] == Word("1")
    world.resume(B)
    world.run_to(3.0)
    assert other.heard[-1][-1] == Word("2")


def fans_out(to: list[Address]) -> Callable[[Message], list[Effect]]:
    """On "go", "first" to the first of them, then a word for each at once, then a word more to the last."""
    each = SendEach(to, [Word(address.name) for address in to])
    effects: list[Effect] = [Send(to[0], Word("first")), each, Send(to[-1], Word("last"))]
    return lambda message: effects if message == Word("go") else []


def test_words_for_each_arrive_in_order_as_if_they_were_sent_singly() -> None:
    world, one, others = World(0.25), Ear(fans_out([B, C])), {B: Ear(), C: Ear()}
    world.add(A, one)
    for address, ear in others.items():
        world.add(address, ear)
        world.connect(A, address)
    world.run_to(1.0)
    world.keep_sent = False
    before = world.delivered
    world.post(A, A, Word("go"), 0.0)
    world.run_to(2.0)
    assert [others[at].words() for at in (B, C)] == [[(1.25, "first"), (1.25, "b")], [(1.25, "c"), (1.25, "last")]]
    assert world.delivered - before == 5
    world.post(A, A, Word("go"), 0.0)
    world.run_to(2.1)
    world.disconnect(A, C)
    world.run_to(3.0)
    assert others[B].words()[2:] == [(2.25, "first"), (2.25, "b")]
    assert others[C].words()[2:] == []
    world.post(A, A, Word("go"), 0.0)
    world.stall(A, B)
    world.run_to(4.0)
    assert (others[B].words()[4:], world.dropped["Word"]) == ([], 2)
    world.unstall(A, B)
    world.run_to(5.0)
    assert others[B].words()[4:] == [(4.25, "first"), (4.25, "b")]
