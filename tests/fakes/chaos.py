"""Random load and random faults on a whole cluster in virtual time, from a seed: every stream must stay exact.

The load shares prompts, so that prefixes are reused, between two tenants, who must never see each other's; some
requests have a name, and a second client comes for the same one. The slab is small, so that sequences are preempted.
After each event slots are conserved; in the end every request has ended and every slot is given back.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from dunlin.messages.door import Rejection
from dunlin.messages.plan import Shed
from dunlin.messages.types import Finish
from simulator.clients import Client
from simulator.driven import DrivenCluster

VOCABULARY = 1000
TENANTS = ("", "one", "two")
NAMED = 0.25
"""Of the requests, so many have a name and two clients."""
FAULTS_UNTIL_S = 5.0


class Chaos:
    """One run. `done` counts what was done to the cluster, so that a test can see that something was.

    `poison` of the requests crash every engine that computes them. Engines crash of nothing else then: who happens to
    run alone in three of them is rightly taken for poison too.
    """

    def __init__(
        self, seed: int, requests: int = 32, faults: int = 8, poison: int = 0, preset: str = "least_loaded"
    ) -> None:
        self.draw = Random(seed)
        self.poison = range(poison)
        self.done: Counter[str] = Counter()
        self.left: list[Client] = []
        self._sheds = 0
        slots = self.draw.choice([96, 160, 400])
        self.cluster = DrivenCluster(
            instances=self.draw.randint(2, 4),
            dispatchers=2,
            tier_bytes=self.draw.choice([1 << 12, 1 << 16, 1 << 20]),
            engine={"slots": slots, "restart_s": 0.5},
            instance={"scheduler.max_running": self.draw.choice([2, 8, 64])},
            preset=preset,
        )
        self.cluster.world.keep_sent = False
        self._plan(requests, faults)

    def run(self) -> None:
        """Everything that was planned, and then until every request has ended. Raises AssertionError."""
        cluster = self.cluster
        cluster.run_until_ready()
        cluster.world.on_delivered = lambda event: self._audit()
        start_s = cluster.world.now_s
        for at_s, act in self._plans:
            cluster.world.run(for_s=max(0.0, start_s + at_s - cluster.world.now_s))
            act()
        cluster.run_until_done(for_s=600.0)
        for client in cluster.clients:
            self._check(client)
        assert cluster.world.run(cluster.all_free, for_s=120.0), list(map(repr, cluster.instances.values()))

    def _audit(self) -> None:
        self.cluster.check_conservation()
        for core in self.cluster.dispatchers.values():
            core.journal.check_integrity()
        for client in self.cluster.clients:
            if client.request and client.rejected is not None and client.rejected.code is Rejection.UNAVAILABLE:
                client.rejected = None
                self.done["asked again"] += 1
                self.cluster.world.later(0.5, partial(self._move, client, client.dispatcher))
        for name in list(self.cluster.instances) if self.poison else ():
            self._bite(name)

    def _bite(self, name: str) -> None:
        """A poison request crashes the engine as soon as a row of it is executed."""
        executing = self.cluster.instances[name].steps.executing()
        if any(sequence.place.sampling.seed in self.poison for sequence, _ in executing) and self._is_whole(name):
            self.cluster.seat(name).crash(signal=11)
            self.done["bite"] += 1

    def _check(self, client: Client) -> None:
        if client in self.left:
            assert client.tokens == client.expected[: len(client.tokens)]
        elif client.rejected is not None and not client.request:
            assert client.rejected.code is Rejection.FULL, client.rejected  # never admitted: it was told when to come
        elif client.submit.sampling.seed in self.poison:
            assert client.finish is Finish.ERROR
            assert client.tokens == []
        else:
            assert client.is_exact, f"{client.request}: {client.finish.name} {client.detail}"

    def _plan(self, requests: int, faults: int) -> None:
        plans: list[tuple[float, int, Callable[[], None]]] = []
        prompts = [[self.draw.randrange(VOCABULARY) for _ in range(48)] for _ in range(3)]
        for number in range(requests):
            shared = self.draw.choice(prompts)[: self.draw.randint(1, 48)]
            own = [self.draw.randrange(VOCABULARY) for _ in range(self.draw.randint(1, 12))]
            length = self.draw.randint(1, 36)
            settings: dict[str, Any] = {"tenant": self.draw.choice(TENANTS)}
            times_s = [self.draw.uniform(0, 2)]
            if self.draw.random() < NAMED:
                settings |= {"idempotency": f"name {number}", "digest": b"d"}
                times_s.append(times_s[0] + self.draw.choice([0.0, 0.1, 3.0]))
            for at_s in times_s:
                plans.append((at_s, number, self._submission(shared + own, length, number, **settings)))
        for number in range(faults):
            plans.append((self.draw.uniform(0, FAULTS_UNTIL_S), -number, self._fault))
        self._plans = [(at_s, act) for at_s, _, act in sorted(plans, key=lambda plan: plan[:2])]

    def _submission(self, tokens: list[int], max_tokens: int, seed: int, **settings: Any) -> Callable[[], None]:
        at = self.draw.randrange(2)

        def submit() -> None:
            names = sorted(self.cluster.dispatchers)
            self.cluster.submit(tokens, max_tokens, seed, at=names[at % len(names)], **settings)

        return submit

    def _fault(self) -> None:
        names = [name.removeprefix("fault_") for name in sorted(dir(self)) if name.startswith("fault_")]
        name = self.draw.choice(names)
        if getattr(self, f"fault_{name}")():
            self.done[name] += 1

    # --- faults: each says whether it was possible, and has the cluster whole again some time later ---

    def fault_kill_instance(self) -> bool:
        if len(self.cluster.instances) < 2:
            return False
        name = self._instance()
        self.cluster.kill_instance(name)
        self.cluster.world.later(self.draw.uniform(0.2, 3.0), lambda: self.cluster.start_instance(name))
        return True

    def fault_crash_engine(self) -> bool:
        name = self._instance()
        if not self._is_whole(name):
            return False
        self.cluster.seat(name).crash(signal=9 if self.poison else self.draw.choice([9, 9, 11]))
        return True

    def fault_hang_engine(self) -> bool:
        self.cluster.seat(self._instance()).engine.is_stuck = True
        return True

    def fault_stop_instance(self) -> bool:
        name = self._instance()
        address = self.cluster.instances[name].address
        if not self._is_whole(name):
            return False
        self.cluster.world.pause(address)
        self.cluster.world.later(self.draw.uniform(0.1, 6.0), lambda: self.cluster.world.resume(address))
        return True

    def _is_whole(self, name: str) -> bool:
        """Whether it runs and has an engine: a stopped instance starts no engine, so the two do not meet."""
        seat = self.cluster.seat(name)
        return seat.engine not in seat.ended and not self.cluster.world.is_paused(self.cluster.instances[name].address)

    def fault_restart_kvstore(self) -> bool:
        self.cluster.restart("kvstore")
        return True

    def fault_restart_monitor(self) -> bool:
        self.cluster.restart("monitor")
        return True

    def fault_restart_manager(self) -> bool:
        self.cluster.restart("global_manager")
        return True

    def fault_kill_dispatcher(self) -> bool:
        if len(self.cluster.dispatchers) < 2:
            return False
        name = self.draw.choice(sorted(self.cluster.dispatchers))
        self.cluster.kill_dispatcher(name)
        (other,) = self.cluster.dispatchers
        for client in self.cluster.clients:
            if client.dispatcher == name and not (client.finish or client.rejected):
                # As the SDK does, a moment later.
                self.cluster.world.later(self.draw.uniform(0.05, 0.5), partial(self._move, client, other))
        self.cluster.world.later(2.0, lambda: self.cluster.start_dispatcher(name))
        return True

    def fault_drain(self) -> bool:
        name = self._instance()
        self.cluster.drain(name)
        self.cluster.world.later(self.draw.uniform(0.1, 4.0), lambda: self.cluster.drain(name, undo=True))
        return True

    def fault_shed(self) -> bool:
        source, target = self._instance(), self._instance()
        term = self.cluster.manager.term
        if source == target or term is None:
            return False
        self._sheds += 1
        shed = Shed(term.epoch, self._sheds, self.cluster.instances[target].address, self.draw.randint(1, 80))
        self.cluster.world.post(self.cluster.manager.address, self.cluster.instances[source].address, shed)
        return True

    def fault_cut_stream(self) -> bool:
        core = self.cluster.instances[self._instance()]
        dispatcher = self.cluster.dispatchers[self.draw.choice(sorted(self.cluster.dispatchers))]
        if self.cluster.world.is_paused(core.address):
            return False
        self.cluster.world.part(core.address, dispatcher.address)
        self.cluster.world.join(core.address, dispatcher.address)
        return True

    def fault_damage_region(self) -> bool:
        offsets = sorted(offset for offset, content in self.cluster.tier.contents.items() if content)
        if not offsets:
            return False
        self.cluster.tier.flip(self.draw.choice(offsets))
        return True

    def fault_client_leaves(self) -> bool:
        open_ones = [c for c in self.cluster.clients if self._is_open(c)]
        if not open_ones:
            return False
        client = self.draw.choice(open_ones)
        self.cluster.world.part(client.address, self.cluster.dispatchers[client.dispatcher].address, "client left")
        client.finish = Finish.CANCELLED
        self.left.append(client)
        return True

    def _move(self, client: Client, to: str) -> None:
        if to not in self.cluster.dispatchers:
            to = sorted(self.cluster.dispatchers)[0]
        if not client.finish:
            self.cluster.move(client, to)

    def _is_open(self, client: Client) -> bool:
        is_there = client.dispatcher in self.cluster.dispatchers
        return is_there and bool(client.request) and client.finish is Finish.RUNNING and not client.rejected

    def _instance(self) -> str:
        return self.draw.choice(sorted(self.cluster.instances))
