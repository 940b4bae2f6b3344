"""Migrations in a whole cluster of real cores, in virtual time: every token exact, every slot given back."""

from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from dunlin.effects import Address, Effect, Joined, Message
from dunlin.messages.dispatch import Accepted, Ready
from dunlin.messages.group import Fill, Filled, Reach, Reserve, Reserved
from dunlin.messages.plan import Drain, DrainDone, DrainOutcome, DrainReply, DrainRequest, Shed, ShedDone
from dunlin.messages.types import Finish
from tests.fakes.cluster import Client, Cluster

ENGINE = {"slots": 512, "step_s": 0.01}


@dataclass
class Ear:
    """Somebody who asks and listens."""

    address: Address
    heard: list[Any] = field(default_factory=list)

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        if not isinstance(message, Joined):
            self.heard.append(message)
        return []


def make_cluster(instances: int = 2, **settings: Any) -> Cluster:
    cluster = Cluster(instances, **{"engine": ENGINE, **settings})
    cluster.link.on_delivered = lambda event: cluster.check_conservation()
    cluster.run_until_ready()
    return cluster


def running(cluster: Cluster, client: Client, tokens: int = 5) -> str:
    """Run until the client has some tokens; who runs it."""
    assert cluster.link.run(lambda: len(client.tokens) >= tokens, for_s=10.0)
    return cluster.holder(client)


def other(cluster: Cluster, name: str) -> str:
    return next(one for one in cluster.instances if one != name)


def shed(cluster: Cluster, source: str, target: str, slots: int = 1, ticket: int = 1, epoch: int | None = None) -> Shed:
    term = cluster.manager.term
    assert term is not None
    order = Shed(epoch or term.epoch, ticket, cluster.instances[target].address, slots)
    cluster.link.post(cluster.manager.address, cluster.instances[source].address, order)
    return order


def sent(cluster: Cluster, kind: type[Any]) -> list[Any]:
    return [message for _, _, _, message in cluster.link.sent if isinstance(message, kind)]


def finish(cluster: Cluster) -> None:
    cluster.run_until_done()
    assert all(client.is_exact for client in cluster.clients)
    cluster.link.run(for_s=20.0)
    assert cluster.all_free()


def until_sent(cluster: Cluster, kind: type[Any], count: int = 1) -> Any:
    """Run until so many messages of that kind are on their way; the last of them."""
    assert cluster.link.run(lambda: len(sent(cluster, kind)) >= count, for_s=10.0), f"no {kind.__name__}"
    return sent(cluster, kind)[-1]


def steps_of(cluster: Cluster, name: str) -> int:
    return cluster.instances[name].report().prefill_tokens_total


@pytest.mark.parametrize("tier", [False, True])
def test_a_running_sequence_moves_and_its_client_sees_nothing(tier: bool) -> None:
    cluster = make_cluster()
    if not tier:
        cluster.link.kill(cluster.kvstore.address)
    client = cluster.submit(list(range(1, 100)), max_tokens=100)
    source = running(cluster, client)
    target = other(cluster, source)
    shed(cluster, source, target)
    ready = until_sent(cluster, Ready)
    assert cluster.link.run(lambda: len(cluster.instances[source].sequences) == 0, for_s=1.0)
    done = until_sent(cluster, ShedDone)
    assert (done.moved, done.stayed) == (1, 0)
    switched = len(client.tokens)
    assert ready.tokens == (99 + switched - 1 if tier else 0)
    assert cluster.link.run(lambda: len(client.tokens) > switched, for_s=1.0)
    assert steps_of(cluster, target) == (0 if tier else 99 + switched)
    assert cluster.instances[target].report().arrivals_total == 1
    assert cluster.instances[source].report().migrations_total == 1
    finish(cluster)


def test_the_pause_is_a_step_and_the_last_copy() -> None:
    cluster = make_cluster()
    client = cluster.submit(list(range(1, 300)), max_tokens=100)
    source = running(cluster, client, tokens=20)
    shed(cluster, source, other(cluster, source))
    until_sent(cluster, ShedDone)
    assert cluster.link.run(lambda: len(client.tokens) >= 60, for_s=2.0)
    gaps = [later - earlier for earlier, later in pairwise(client.times_s)]
    # Out and in again, 5 ms each and a hop about every message, besides the step that computes the next token.
    assert max(gaps) < 0.01 + 2 * 0.005 + 15 * 0.001
    assert sorted(gaps)[-2] < 0.0125
    finish(cluster)


def test_between_nodes_the_regions_go_from_kvstore_to_kvstore() -> None:
    cluster = make_cluster(nodes=2)
    client = cluster.submit(list(range(1, 100)), max_tokens=100)
    source = running(cluster, client)
    target = other(cluster, source)
    shed(cluster, source, target)
    ready = until_sent(cluster, Ready)
    assert ready.tokens == 99 + len(client.tokens) - 1
    assert {fill.regions for fill in sent(cluster, Fill)} == {()}
    assert cluster.link.run(lambda: len(cluster.instances[source].sequences) == 0, for_s=1.0)
    assert cluster.link.run(lambda: len(client.tokens) > 50, for_s=5.0)
    assert steps_of(cluster, target) == 0
    finish(cluster)
    assert [len(kvstore.catalog) for kvstore in cluster.kvstores.values()] == [0, 0]


@pytest.mark.parametrize("nodes", [1, 2])
def test_what_a_move_copied_stays_as_a_checkpoint_and_saves_the_next_failover(nodes: int) -> None:
    cluster = make_cluster(3, nodes=nodes)
    client = cluster.submit(list(range(1, 200)), max_tokens=100)
    source = running(cluster, client)
    names = [*cluster.instances]
    target = names[(names.index(source) + 1) % 3]
    shed(cluster, source, target)
    until_sent(cluster, ShedDone)
    assert cluster.link.run(lambda: cluster.instances[target].sequences.running_count == 1, for_s=1.0)
    cluster.link.run(for_s=0.02)
    (sequence,) = cluster.instances[target].sequences.running
    assert sequence.kept_tokens >= 199
    finish(cluster)
    assert [len(kvstore.catalog) for kvstore in cluster.kvstores.values()] == [0] * nodes


# --- what goes wrong ---


def stays(cluster: Cluster, source: str, detail: str) -> None:
    """The migration failed and its sequence goes on at the source."""
    done = until_sent(cluster, ShedDone)
    assert (done.moved, done.stayed) == (0, 1)
    assert detail in done.detail
    assert cluster.instances[source].sequences.running_count == 1
    finish(cluster)


@pytest.mark.parametrize(
    ("fields", "detail"),
    [({"weights_digest": "other"}, "other weights"), ({"slots": 64}, "never fit"), ({"kv_dtype": "bf16"}, "KV type")],
)
def test_a_target_that_cannot_take_it_says_why_and_it_stays(fields: dict[str, Any], detail: str) -> None:
    cluster = make_cluster(1)
    client = cluster.submit(list(range(1, 50)), max_tokens=100)
    source = running(cluster, client)
    cluster._engine |= fields
    target = cluster.start_instance("odd").address.name
    cluster.run_until_ready()
    shed(cluster, source, target)
    stays(cluster, source, detail)


def test_a_full_target_refuses() -> None:
    cluster = make_cluster(2)
    long = [cluster.submit([number] * 200, max_tokens=250) for number in range(4)]
    assert cluster.link.run(lambda: all(client.tokens for client in long), for_s=5.0)
    source = cluster.holder(long[0])
    shed(cluster, source, other(cluster, source))
    done = until_sent(cluster, ShedDone)
    assert (done.moved, done.stayed) == (0, 1)
    assert "too few free slots" in done.detail
    cluster.run_until_done()
    finish(cluster)


@pytest.mark.parametrize("kind", [Reach, Reserve, Reserved, Fill, Filled])
def test_a_target_that_dies_before_the_switch_leaves_it_where_it_is(kind: type[Any]) -> None:
    cluster = make_cluster(instance={"move_stage_s": 0.3})
    client = cluster.submit(list(range(1, 100)), max_tokens=100)
    source = running(cluster, client)
    target = other(cluster, source)
    shed(cluster, source, target)
    until_sent(cluster, kind)
    cluster.kill_instance(target)
    stays(cluster, source, "gone" if kind is not Reach else "no stream")


def test_a_target_that_dies_with_the_sequence_ready_gives_it_back_to_the_source() -> None:
    cluster = make_cluster()
    client = cluster.submit(list(range(1, 100)), max_tokens=100)
    source = running(cluster, client)
    target = other(cluster, source)
    shed(cluster, source, target)
    until_sent(cluster, Ready)
    before = steps_of(cluster, source)
    cluster.kill_instance(target)
    assert cluster.link.run(lambda: cluster.instances[source].sequences.running_count == 1, for_s=1.0)
    assert steps_of(cluster, source) == before, "its KV was there"
    finish(cluster)


def test_a_target_that_dies_after_it_accepted_loses_nothing() -> None:
    cluster = make_cluster()
    client = cluster.submit(list(range(1, 100)), max_tokens=100)
    source = running(cluster, client)
    target = other(cluster, source)
    shed(cluster, source, target)
    assert cluster.link.run(lambda: cluster.instances[target].sequences.running_count == 1, for_s=5.0)
    cluster.kill_instance(target)
    finish(cluster)


@pytest.mark.parametrize("kind", [Reserve, Reserved, Fill, Filled, Ready])
def test_a_source_that_dies_on_the_way_loses_nothing_and_the_target_frees_its_room(kind: type[Any]) -> None:
    cluster = make_cluster()
    client = cluster.submit(list(range(1, 100)), max_tokens=100)
    source = running(cluster, client)
    shed(cluster, source, other(cluster, source))
    until_sent(cluster, kind)
    cluster.kill_instance(source)
    finish(cluster)


def test_a_source_that_dies_when_its_dispatcher_knows_leaves_the_kv_at_the_target() -> None:
    cluster = make_cluster()
    client = cluster.submit(list(range(1, 100)), max_tokens=100)
    source = running(cluster, client)
    target = other(cluster, source)
    shed(cluster, source, target)
    place = until_sent(cluster, Accepted, 2)
    assert place.attempt == 2
    cluster.kill_instance(source)
    assert cluster.link.run(lambda: len(client.tokens) > 50, for_s=5.0)
    assert steps_of(cluster, target) == 0
    finish(cluster)


@pytest.mark.parametrize("kind", [Reserve, Reserved, Fill, Filled, Ready])
def test_a_kvstore_that_dies_on_the_way_costs_time_alone(kind: type[Any]) -> None:
    cluster = make_cluster()
    client = cluster.submit(list(range(1, 100)), max_tokens=100)
    source = running(cluster, client)
    target = other(cluster, source)
    shed(cluster, source, target)
    until_sent(cluster, kind)
    cluster.link.kill(cluster.kvstore.address)
    done = until_sent(cluster, ShedDone)
    assert (done.moved, done.stayed) == (1, 0)
    assert cluster.holder(client) == target
    finish(cluster)


@pytest.mark.parametrize("kind", [Reserve, Reserved, Fill, Filled, Ready])
def test_a_dispatcher_that_dies_on_the_way_leaves_no_slot_behind(kind: type[Any]) -> None:
    cluster = make_cluster()
    client = cluster.submit(list(range(1, 100)), max_tokens=350)
    source = running(cluster, client)
    shed(cluster, source, other(cluster, source))
    until_sent(cluster, kind)
    cluster.link.kill(cluster.dispatcher.address)
    cluster.link.run(for_s=60.0)  # the grace, and what the rooms wait for
    assert cluster.all_free()


@pytest.mark.parametrize("kind", [Reserve, Reserved, Fill, Filled, Ready])
def test_a_client_that_leaves_on_the_way_frees_both_ends(kind: type[Any]) -> None:
    cluster = make_cluster()
    client = cluster.submit(list(range(1, 100)), max_tokens=350)
    source = running(cluster, client)
    shed(cluster, source, other(cluster, source))
    until_sent(cluster, kind)
    cluster.leave(client)
    cluster.link.run(for_s=1.0)
    assert cluster.all_free(), "at once, not when somebody's patience ends"
    assert until_sent(cluster, ShedDone).moved in (0, 1)


def test_a_damaged_region_is_not_used() -> None:
    cluster = make_cluster()
    client = cluster.submit(list(range(1, 100)), max_tokens=100)
    source = running(cluster, client)
    target = other(cluster, source)
    shed(cluster, source, target)
    fill = until_sent(cluster, Fill)
    cluster.tier.flip(fill.regions[0].host.offset_bytes)
    ready = until_sent(cluster, Ready)
    assert ready.tokens < fill.tokens
    finish(cluster)
    assert cluster.instances[target].report().arrivals_total == 1


@pytest.mark.parametrize("left", [1, 2, 3])
def test_a_sequence_that_ends_on_the_way_is_left_alone(left: int) -> None:
    cluster = make_cluster()
    client = cluster.submit(list(range(1, 100)), max_tokens=10 + left)
    source = running(cluster, client, tokens=10)
    shed(cluster, source, other(cluster, source))
    finish(cluster)
    assert until_sent(cluster, ShedDone).moved + until_sent(cluster, ShedDone).stayed == 1


def test_an_engine_that_dies_at_the_source_or_the_target_costs_time_alone() -> None:
    for crashed in ("source", "target"):
        for kind in (Reserve, Reserved, Fill, Filled, Ready):
            cluster = make_cluster()
            client = cluster.submit(list(range(1, 100)), max_tokens=100)
            source = running(cluster, client)
            target = other(cluster, source)
            shed(cluster, source, target)
            until_sent(cluster, kind)
            cluster.seats[source if crashed == "source" else target].crash()
            finish(cluster)


# --- fences ---


def test_a_deposed_managers_orders_change_nothing() -> None:
    cluster = make_cluster()
    client = cluster.submit(list(range(1, 100)), max_tokens=100)
    source = running(cluster, client)
    shed(cluster, source, other(cluster, source), epoch=1)
    done = until_sent(cluster, ShedDone)
    assert (done.moved, done.stayed) == (0, 0)
    assert "stale" in done.detail
    term = cluster.manager.term
    assert term is not None
    cluster.link.post(cluster.manager.address, cluster.instances[source].address, Drain(1, 9))
    refused = until_sent(cluster, DrainDone)
    assert (refused.draining, "stale" in refused.detail) == (False, True)
    assert not cluster.instances[source].report().draining
    finish(cluster)


def test_an_order_that_comes_again_is_done_once() -> None:
    cluster = make_cluster()
    clients = [cluster.submit([number, *range(30)], max_tokens=100) for number in range(6)]
    assert cluster.link.run(lambda: all(len(client.tokens) >= 5 for client in clients), for_s=10.0)
    source = cluster.holder(clients[0])
    held = len(cluster.instances[source].sequences)
    order = shed(cluster, source, other(cluster, source))
    shed(cluster, source, other(cluster, source))
    done = until_sent(cluster, ShedDone)
    cluster.link.post(cluster.manager.address, cluster.instances[source].address, order)
    assert until_sent(cluster, ShedDone, 2) == done
    assert len(cluster.instances[source].sequences) == held - 1
    finish(cluster)


def test_a_target_fences_a_source_that_follows_an_older_term() -> None:
    cluster = make_cluster()
    client = cluster.submit(list(range(1, 100)), max_tokens=100)
    source = running(cluster, client)
    target = other(cluster, source)
    core = cluster.instances[target]
    followed = cluster.manager.term.order_of(core.address)  # type: ignore[union-attr]
    assert followed is not None
    cluster.link.post(cluster.manager.address, core.address, replace(followed, epoch=followed.epoch + 1))
    shed(cluster, source, target)
    stays(cluster, source, "stale: this instance follows epoch")


# --- drains ---


def drain(cluster: Cluster, name: str, undo: bool = False) -> DrainReply:
    """Ask the manager, as a tool does; its answer."""
    tool = Ear(Address("client", f"tool-{cluster.link.delivered}"))
    cluster.link.add(tool.address, tool)
    cluster.link.join(tool.address, cluster.manager.address)
    cluster.link.post(tool.address, cluster.manager.address, DrainRequest(name, undo))
    assert cluster.link.run(lambda: bool(tool.heard), for_s=1.0)
    (reply,) = tool.heard
    assert isinstance(reply, DrainReply)
    return reply


def test_a_drained_instance_is_emptied_under_load_and_takes_nothing_until_told_to() -> None:
    cluster = make_cluster(3)
    clients = [cluster.submit([number, 2, 3], max_tokens=150) for number in range(24)]
    assert cluster.link.run(lambda: all(len(client.tokens) >= 5 for client in clients), for_s=10.0)
    name = cluster.holder(clients[0])
    assert drain(cluster, name).outcome is DrainOutcome.ORDERED
    core = cluster.instances[name]
    assert len(core.sequences) > 2
    assert cluster.link.run(lambda: len(core.sequences) == 0, for_s=3.0)
    assert not all(client.finish for client in clients), "they just ended"
    later = [cluster.submit([number, 9], max_tokens=20) for number in range(12)]
    cluster.run_until_done()
    assert all(client.is_exact for client in [*clients, *later])
    assert len(core.sequences) == 0
    assert core.report().draining
    assert drain(cluster, name, undo=True).outcome is DrainOutcome.ORDERED
    assert cluster.link.run(lambda: len(cluster.dispatcher.fleet.placeable) == 3, for_s=2.0)
    finish(cluster)


def test_a_drain_outlives_the_leader_that_ordered_it() -> None:
    cluster = make_cluster(2)
    clients = [cluster.submit([number, 2, 3], max_tokens=100) for number in range(12)]
    assert cluster.link.run(lambda: all(len(client.tokens) >= 3 for client in clients), for_s=10.0)
    name = cluster.holder(clients[0])
    drain(cluster, name)
    assert cluster.link.run(lambda: cluster.instances[name].report().draining, for_s=1.0)
    cluster.link.kill(cluster.manager.address)
    cluster.start_manager()
    assert cluster.link.run(lambda: len(cluster.instances[name].sequences) == 0, for_s=5.0)
    finish(cluster)


# --- everything at once ---


class Campaign:
    """Moves, drains and faults at random times in a cluster under load."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.cluster = make_cluster(3, manager={"rebalance": "llumnix"}, tier_bytes=1 << 17)
        self.left: list[Client] = []
        self.restarting_until_s: dict[str, float] = {}

    def run(self, acts: int) -> None:
        """Submit, act, wait a little; then everything must end well."""
        often = [self.submit] * 4 + [self.shed] * 4
        choices = [*often, self.drain, self.undrain, self.kill, self.crash, self.leave, self.flip, self.depose]
        for _ in range(acts):
            self.random.choice(choices)()
            self.cluster.link.run(for_s=self.random.choice((0.0, 0.003, 0.01, 0.05, 0.3)))
        for name in self.cluster.instances:
            drain(self.cluster, name, undo=True)
        for client in self.cluster.clients:
            if client in self.left:
                assert client.tokens == client.expected[: len(client.tokens)]
                client.finish = client.finish or Finish.CANCELLED
        self.cluster.run_until_done()
        wrong = [client for client in self.cluster.clients if client not in self.left and not client.is_exact]
        assert not wrong
        self.cluster.link.run(for_s=40.0)
        assert self.cluster.all_free()

    def name(self) -> str:
        return self.random.choice(list(self.cluster.instances))

    def submit(self) -> None:
        prompt = [self.random.randrange(1000) for _ in range(self.random.choice((3, 40, 150)))]
        self.cluster.submit(prompt, max_tokens=self.random.choice((5, 40, 120)))

    def shed(self) -> None:
        source, target = self.name(), self.name()
        moves = self.cluster.manager.moves
        if source != target and moves is not None:
            moves.tickets += 1
            shed(self.cluster, source, target, self.random.choice((1, 100, 1000)), moves.tickets)

    def drain(self) -> None:
        drain(self.cluster, self.name())

    def undrain(self) -> None:
        drain(self.cluster, self.name(), undo=True)

    def kill(self) -> None:
        name = self.name()
        self.cluster.kill_instance(name)
        self.cluster.start_instance(name)
        self.restarting_until_s.pop(name, None)

    def crash(self) -> None:
        name = self.name()
        if self.cluster.link.now_s > self.restarting_until_s.get(name, 0.0):
            self.cluster.seats[name].crash()
            self.restarting_until_s[name] = self.cluster.link.now_s + 1.1

    def leave(self) -> None:
        going = [client for client in self.cluster.clients if not client.finish and client not in self.left]
        if going:
            client = self.random.choice(going)
            self.left.append(client)
            self.cluster.leave(client)

    def flip(self) -> None:
        offsets = [offset for offset, content in self.cluster.tier.contents.items() if content]
        if offsets:
            self.cluster.tier.flip(self.random.choice(offsets))

    def depose(self) -> None:
        self.cluster.link.kill(self.cluster.manager.address)
        self.cluster.start_manager()


@pytest.mark.parametrize("seed", range(8))
def test_random_moves_and_faults_lose_nothing(seed: int) -> None:
    Campaign(seed).run(40)
