"""The clients of a campaign: they check each token, resume as the SDK does, and stop asking when they should."""

from collections.abc import Sequence
from typing import Any

import pytest

from dunlin.effects import Address, Gone, Message
from dunlin.messages.door import Admitted, Delta, RejectionCode, Submit, SubmitRejected
from dunlin.messages.types import FinishReason, i32
from simulator.campaign.clients import MOST_TRIES, RETRY_S, CampaignClient, CampaignClients
from simulator.campaign.violation import Violation
from simulator.cluster.world import World
from simulator.engine.token_model import continuation
from tests.simulator.campaign.campaign_bench import planned

SAID = continuation((1, 2, 3), 60, 0)


class FakeDoor:
    """A dispatcher that records what it receives."""

    def __init__(self) -> None:
        self.heard: list[Message] = []

    def receive(self, now_s: float, sender: Address, message: Message) -> Sequence[Any]:
        self.heard.append(message)
        return []

    @property
    def submits(self) -> list[Submit]:
        return [message for message in self.heard if isinstance(message, Submit)]


class FakeCluster:
    """Two dispatchers that answer what the test says."""

    def __init__(self) -> None:
        self.world = World()
        self.open = [Address("dispatcher", f"d{index}", index + 1) for index in range(2)]
        self.at = {address: FakeDoor() for address in self.open}
        for address, door in self.at.items():
            self.world.add(address, door)

    def doors(self) -> list[Address]:
        return self.open

    def submits(self, index: int) -> list[Submit]:
        return list(self.at.values())[index].submits


def connected(**changes: Any) -> tuple[FakeCluster, CampaignClient]:
    """A client that submitted its request to the first dispatcher."""
    cluster: Any = FakeCluster()
    clients = CampaignClients(cluster)
    for _, act in clients.arrivals(planned(**changes))[:1]:
        act()
    cluster.world.run(for_s=0.1)
    return cluster, clients.all[0]


def tell(cluster: FakeCluster, client: CampaignClient, *messages: Message) -> None:
    for message in messages:
        assert client.door is not None
        assert client.receive(cluster.world.now_s, client.door, message) == []


def delta(*tokens: int, finish: FinishReason = FinishReason.RUNNING) -> Delta:
    return Delta(i32(tokens), finish=finish)


# --- tokens ---


def test_an_exact_stream_ends_its_client() -> None:
    cluster, client = connected()
    tell(cluster, client, Admitted("req-1-1"), delta(*SAID[:5]), delta(*SAID[5:], finish=FinishReason.LENGTH))
    assert (client.request, client.tokens == client.expected, client.is_done) == ("req-1-1", True, True)
    assert client.ended_s == cluster.world.now_s


@pytest.mark.parametrize(
    "wrong", [SAID[1:2], [SAID[0] + 1], [*SAID[:3], SAID[2]], [*SAID, 5]], ids=["missing", "wrong", "twice", "beyond"]
)
def test_a_token_that_was_not_due_breaks_i1(wrong: list[int]) -> None:
    cluster, client = connected()
    with pytest.raises(Violation, match=r"^I1 at .*client 0 .* where .* was due"):
        tell(cluster, client, Admitted("req-1-1"), delta(*wrong))


def test_a_token_after_the_end_breaks_i1() -> None:
    cluster, client = connected()
    tell(cluster, client, Admitted("req-1-1"), delta(SAID[0], finish=FinishReason.ERROR))
    with pytest.raises(Violation, match=r"^I1 at .*gets \[\] after its end"):
        tell(cluster, client, delta())


def test_another_id_breaks_i1_unless_the_request_has_an_idempotency_key() -> None:
    cluster, client = connected()
    with pytest.raises(Violation, match=r"^I1 at .*is called req-2-1 now"):
        tell(cluster, client, Admitted("req-1-1"), Admitted("req-1-1"), Admitted("req-2-1"))
    cluster, client = connected(named=True)
    tell(cluster, client, Admitted("req-1-1"), Admitted("req-2-1"))
    assert client.request == "req-1-1"


def test_a_dispatcher_that_it_left_is_not_heard() -> None:
    _, client = connected()
    client.receive(1.0, Address("dispatcher", "d1", 2), delta(999))
    assert client.tokens == []


# --- connections ---


def test_an_admitted_request_is_resumed_at_the_next_dispatcher_with_its_tokens() -> None:
    cluster, client = connected()
    tell(cluster, client, Admitted("req-1-1"), delta(*SAID[:2]), Gone("lost"))
    cluster.world.run(for_s=0.2)
    (resumed,) = cluster.submits(1)
    assert (resumed.key, list(resumed.received), client.attempts) == ("req-1-1", SAID[:2], 2)
    tell(cluster, client, delta(SAID[2]))
    assert client.tokens == SAID[:3]


def test_a_request_that_was_not_admitted_is_submitted_again_from_its_start() -> None:
    cluster, client = connected()
    tell(cluster, client, delta(SAID[0]), Gone("lost"))
    cluster.world.run(for_s=0.2)
    (again,) = cluster.submits(1)
    assert (again.key, list(again.received), client.tokens) == ("", [], [])


def test_without_a_dispatcher_it_waits_and_asks_again() -> None:
    cluster, client = connected()
    doors, cluster.open = cluster.open, []
    tell(cluster, client, Gone("lost"))
    cluster.world.run(for_s=5.0)
    assert client.attempts == 1
    cluster.open = doors
    cluster.world.run(for_s=RETRY_S + 0.1)
    assert client.attempts == 2


def test_a_dispatcher_that_died_before_the_connection_was_open_is_left() -> None:
    cluster, client = connected()
    cluster.world.sever(client.address, cluster.open[0])
    cluster.world.run(for_s=RETRY_S)
    assert (client.door, len(cluster.submits(1))) == (cluster.open[1], 1)


def test_a_client_that_disconnects_gets_nothing_more_and_does_not_come_back() -> None:
    cluster, client = connected()
    tell(cluster, client, Admitted("req-1-1"))
    client.disconnect()
    client.disconnect()
    assert (client.is_done, client.ended_s) == (True, cluster.world.now_s)
    tell(cluster, client, delta(999))
    client.connect()
    cluster.world.run(for_s=5.0)
    assert (client.tokens, client.attempts) == ([], 1)
    assert isinstance(cluster.at[cluster.open[0]].heard[-1], Gone)


# --- refusals ---


def refused(code: RejectionCode, request: str = "", attempts: int = 1, retry_s: float = 0.0) -> tuple[bool, int]:
    """Whether the client gave up, and its attempts two seconds later."""
    cluster, client = connected()
    if request:
        tell(cluster, client, Admitted(request))
    client.attempts = attempts
    tell(cluster, client, SubmitRejected(code, "no", retry_s))
    cluster.world.run(for_s=2.0)
    return client.is_done, client.attempts


def test_what_passes_is_tried_again_and_what_does_not_is_the_end() -> None:
    assert refused(RejectionCode.UNAVAILABLE) == (False, 2)
    assert refused(RejectionCode.UNAVAILABLE, retry_s=3.0) == (False, 1)
    assert refused(RejectionCode.FULL, request="req-1-1") == (False, 2)
    assert refused(RejectionCode.FULL) == (True, 1)
    assert refused(RejectionCode.QUOTA) == (True, 1)
    assert refused(RejectionCode.UNAVAILABLE, attempts=MOST_TRIES) == (True, MOST_TRIES)


# --- all of a trial ---


def test_a_named_request_has_two_clients_with_one_key_and_each_may_leave() -> None:
    cluster: Any = FakeCluster()
    clients = CampaignClients(cluster)
    acts = clients.arrivals(planned(number=4, at_s=2.0, named=True, second_client_s=3.0, disconnect_s=0.5, door=1))
    assert [at_s for at_s, _ in acts] == [2.0, 2.5, 5.0, 5.5]
    assert [client.submit.idempotency for client in clients.all] == ["name 4", "name 4"]
    assert clients.open() == []
    acts[0][1]()
    assert clients.open() == clients.all[:1]
    assert clients.all[0].door == cluster.open[1]
    acts[1][1]()
    assert (clients.open(), clients.all_done()) == ([], False)
    clients.all[1].disconnect()
    assert clients.all_done()


def test_a_duplicate_goes_to_the_other_dispatcher() -> None:
    cluster: Any = FakeCluster()
    clients = CampaignClients(cluster)
    clients.arrivals(planned(named=True))
    twin = clients.duplicate(clients.all[0])
    twin.connect()
    assert (twin.door, twin.submit, twin.number) == (cluster.open[1], clients.all[0].submit, 1)
