"""Anything in any order: places, cancels, lost streams, dying engines and kvstores, damaged regions.

Whatever happens, no token is wrong, repeated or missing, no slot is lost or shared, every accepted attempt comes to an
end, and nothing is left over.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from dunlin.messages.types import FinishReason, i32
from simulator.engine.model import ProgressPoll
from tests.services.instance.bench import ENGINE, ME, Attempt, Bench, Dispatcher, make_place

SLOTS = 64


class InstanceMachine(RuleBasedStateMachine):
    """Drives one bench. The checks of tokens, slots and regions are the bench's."""

    @initialize(
        tier_bytes=st.sampled_from([None, 64 * 40, 1 << 16, 1 << 16]),
        budget=st.sampled_from([4, 16, 512]),
        ahead=st.sampled_from([1, 8]),
        move_s=st.sampled_from([0.001, 0.015, 0.2]),
        share=st.sampled_from([0, 0.5]),
        faults=st.sampled_from(["", "", "engine", "kvstore", "dispatcher", "engine kvstore dispatcher"]),
    )
    def begin(self, tier_bytes: int | None, budget: int, ahead: int, move_s: float, share: float, faults: str) -> None:
        engine = {"slots": SLOTS, "move_s": move_s, "restart_s": 0.3}
        self.bench = Bench(
            tier_bytes=tier_bytes,
            engine=engine,
            scheduler__budget_tokens=budget,
            scheduler__allocate_ahead_tokens=ahead,
            scheduler__max_running=6,
            scheduler__max_waiting=6,
            retention__orphan_grace_s=2.0,
            checkpoint__engine_share=share,
            checkpoint__min_tokens=16,
            recovery__engine_grace_s=1.0,
        )
        self.bench.add_dispatcher("e")
        self.bench.run(0.01)
        self.requests = 0
        self.is_damaged = False
        self.faults = dict.fromkeys(faults.split(), 2)
        self.away: dict[str, None] = {}
        self.cancelled: list[tuple[Dispatcher, Attempt]] = []

    @rule(
        sizes=st.lists(st.tuples(st.integers(1, 24), st.integers(8, 40)), min_size=1, max_size=5),
        who=st.sampled_from("de"),
        stops=st.lists(st.integers(0, 999), max_size=10),
        tenant=st.sampled_from(["", "a", "b"]),
    )
    def place(self, sizes: list[tuple[int, int]], who: str, stops: list[int], tenant: str) -> None:
        """Requests of a named tenant all begin alike, those of the unnamed one have nothing in common."""
        for tokens, max_tokens in sizes if who not in self.away else []:
            self.requests += 1
            by = self.bench.dispatchers[who]
            known = list(range(100, 101 + tokens)) if tenant else []
            options = {"tokens": tokens, "max_tokens": max_tokens, "stop_ids": i32(stops), "tenant": tenant}
            self.bench.place(self.requests, by=by, known=known, **options)

    @rule(tokens=st.integers(60, 70))
    def place_a_long_one(self, tokens: int) -> None:
        if "d" not in self.away:
            self.requests += 1
            self.bench.place(self.requests, tokens=tokens, max_tokens=2)

    @rule(pick=st.integers(0, 100))
    def hand_out_again(self, pick: int) -> None:
        who, attempt = self._pick(pick)
        if attempt is not None and attempt.finish is FinishReason.RUNNING and who.address.name not in self.away:
            latest = max(number for request, number in who.attempts if request == attempt.place.request)
            if latest == attempt.place.attempt and not attempt.is_cut:
                self.bench.again(attempt, by=who)

    @rule(stop=st.integers(1, 3), wrong=st.booleans(), tokens=st.integers(20, 50))
    def come_from_elsewhere(self, stop: int, wrong: bool, tokens: int) -> None:
        """A later attempt, whose earlier one left regions in the tier: of its own tokens, or of others."""
        if self.bench.kvstore is None or self.is_kvstore_stopped() or "d" in self.away:
            return
        self.requests += 1
        known = [self.requests % 997, *range(tokens - 1)]
        place = make_place(self.requests, known=known, attempt=2)
        text = [*known[:10], *range(500, 500 + tokens)] if wrong else known
        if self.bench.kvstore.catalog.allocator.free_bytes >= 48 * 64:
            self.bench.leave_behind(place, *[(16 * i, min(16 * i + 16, tokens)) for i in range(stop)][:2], tokens=text)
        self.bench.place(self.requests, known=known, attempt=2, max_tokens=20)

    @rule(pick=st.integers(0, 100))
    def cancel(self, pick: int) -> None:
        who, attempt = self._pick(pick)
        if attempt is not None and who.address.name not in self.away:
            self.bench.cancel(attempt, by=who)
            self.cancelled.append((who, attempt))

    @rule(for_s=st.sampled_from([0.001, 0.004, 0.011, 0.05, 0.15, 0.4]))
    def run_on(self, for_s: float) -> None:
        self.bench.run(for_s)

    @precondition(lambda self: self.may("engine") and self.bench.core.steps.outstanding)
    @rule(how=st.sampled_from(["hangs", "killed", "killed", "goes wild", "exits", "stays away"]))
    def lose_engine(self, how: str) -> None:
        self.faults["engine"] -= 1
        if how == "hangs":
            self.bench.engine.is_stuck = True
        elif how == "stays away":  # longer than the grace, though it was expected sooner
            self.bench.seat.crash(returns=False)
            self.bench.world.post(ENGINE, ENGINE, ProgressPoll(), 1.5)
        else:
            signal = {"killed": 9, "goes wild": 11, "exits": 0}[how]
            self.bench.seat.crash(signal, code=3 if how == "exits" else 0)

    @precondition(lambda self: self.may("kvstore"))
    @rule()
    def lose_or_start_kvstore(self) -> None:
        self.faults["kvstore"] -= 1
        if self.bench.kvstore is None:
            self.bench.start_kvstore(64 * 40)
        else:
            self.bench.kill_kvstore()

    @precondition(lambda self: self.may("kvstore") and self.bench.kvstore is not None)
    @rule()
    def stop_or_continue_kvstore(self) -> None:
        if self.is_kvstore_stopped():
            self.bench.world.resume(self.bench.kvstore_address)
        else:
            self.faults["kvstore"] -= 1
            self.bench.world.pause(self.bench.kvstore_address)

    @precondition(lambda self: self.bench.tier.contents)
    @rule(pick=st.integers(0, 100))
    def damage(self, pick: int) -> None:
        self.is_damaged = True
        offsets = sorted(self.bench.tier.contents)
        self.bench.tier.corrupt(offsets[pick % len(offsets)])

    @precondition(lambda self: self.may("dispatcher"))
    @rule(who=st.sampled_from("de"))
    def part_or_join(self, who: str) -> None:
        self.faults["dispatcher"] -= 1
        dispatcher = self.bench.dispatchers[who]
        if who in self.away:
            del self.away[who]
            self.bench.world.connect(dispatcher.address, ME)
            self.bench.run(0.01)
        else:
            self.away[who] = None
            self.bench.world.disconnect(dispatcher.address, ME)

    def may(self, fault: str) -> bool:
        """Whether this example has such a fault left."""
        return self.faults.get(fault, 0) > 0

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        self.bench.run_until_quiet()
        if self.is_kvstore_stopped():
            self.bench.world.resume(self.bench.kvstore_address)
        # By now unclaimed regions are released, and an engine that was stopped with work was started again.
        self.bench.run(32.0)
        self.bench.check_empty()
        if not self.is_damaged:
            assert self.bench.core.host_cache.corrupt_total == 0, "a region was read that is not the one written"
        if self.bench.kvstore is not None:
            stale, claimed = self.bench.kvstore.stale_total, self.bench.kvstore.report().claimed_total
            assert stale <= claimed, "the kvstore was told of regions that it does not have"
        for dispatcher in self.bench.dispatchers.values():
            for attempt in dispatcher.attempts.values():
                assert attempt.is_over or attempt.is_cut, f"{attempt.place} was never ended: {attempt.heard}"
                if attempt.finish is not FinishReason.RUNNING and not attempt.is_cut:
                    assert attempt.tokens == attempt.expected
        for who, attempt in self.cancelled:
            assert attempt.is_over or attempt.is_cut, f"{who.address}: no end of {attempt.place}"

    def is_kvstore_stopped(self) -> bool:
        """Whether the kvstore that there is stands still."""
        return self.bench.kvstore is not None and self.bench.world.is_paused(self.bench.kvstore_address)

    def _pick(self, pick: int) -> tuple[Dispatcher, Attempt | None]:
        dispatcher = self.bench.dispatchers["de"[pick % 2]]
        known = [attempt for attempt in dispatcher.attempts.values() if attempt.is_accepted]
        return dispatcher, known[pick % len(known)] if known else None


TestInstanceMachine = InstanceMachine.TestCase
TestInstanceMachine.settings = settings(max_examples=60, stateful_step_count=30)
