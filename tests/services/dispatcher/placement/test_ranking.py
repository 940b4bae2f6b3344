"""The ranking finds what a policy would find among all, without looking at all."""

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dunlin.effects import Address
from dunlin.messages.fleet import FleetView, MemberView
from dunlin.messages.types import RequestClass
from dunlin.policies.dispatch import CANDIDATE_ORDERS, DISPATCH_POLICIES, DispatchCandidate
from services.dispatcher.placement.fleet_state import FleetState
from services.dispatcher.placement.ranking import KEPT_PER_SHAPE, InstanceRanking, PrefixHits, RankedInstance
from tests.services.dispatcher.factories import MONITOR, A, B, member

SMALL = st.integers(0, 4)
CANDIDATES = st.builds(
    DispatchCandidate,
    name=st.just("i"),
    capacity_slots=st.sampled_from([0, 300, 1000]),
    free_slots=st.integers(-100, 300),
    requests=SMALL,
    waiting_tokens=st.sampled_from([0, 64, 65]),
    last_dispatch=SMALL,
)


def address(number: int) -> Address:
    return Address("instance", f"i{number}", number)


def entries(candidates: list[DispatchCandidate], short: list[bool]) -> list[RankedInstance]:
    return [
        RankedInstance(number, address(number), candidate, candidate.capacity_slots // 2, is_short)
        for number, (candidate, is_short) in enumerate(zip(candidates, short, strict=False))
    ]


@given(
    policy=st.sampled_from(sorted(DISPATCH_POLICIES)),
    candidates=st.lists(CANDIDATES, max_size=14),
    short=st.lists(st.booleans(), min_size=14, max_size=14),
    tokens=st.lists(st.sampled_from([0, 0, 16, 32, 96]), min_size=14, max_size=14),
    few=st.sets(st.integers(0, 13)),
    unfit=st.lists(st.integers(0, 13).map(address), max_size=2),
    slots=st.integers(1, 300),
    longest=st.sampled_from([1, 150, 151, 501]),
)
def test_a_policy_chooses_among_the_best_as_among_all(
    policy: str,
    candidates: list[DispatchCandidate],
    short: list[bool],
    tokens: list[int],
    few: set[int],
    unfit: list[Address],
    slots: int,
    longest: int,
) -> None:
    ranking = InstanceRanking(CANDIDATE_ORDERS[policy])
    all_entries = entries(candidates, short)
    for entry in all_entries:
        ranking.put(entry)
    most = max((tokens[number] for number in range(14) if number not in few), default=0)
    held = PrefixHits(
        {address(number): tokens[number] for number in sorted(few)}, most, lambda instance: tokens[instance.incarnation]
    )
    able = [
        entry
        for entry in all_entries
        if entry.fits(slots) and entry.max_length >= longest and entry.address not in unfit
    ]
    best = ranking.best(slots, longest, unfit, held)
    assert ranking.has_room(slots) == any(entry.fits(slots) for entry in all_entries)
    assert bool(best) == bool(able)
    if able:
        full = DISPATCH_POLICIES[policy](slots, [with_held(entry, tokens) for entry in able])
        found = DISPATCH_POLICIES[policy](slots, [entry.candidate for entry in best], len(able))
        assert best[found.index].number == able[full.index].number
        assert found.why == full.why


def with_held(entry: RankedInstance, tokens: list[int]) -> DispatchCandidate:
    candidate = entry.candidate
    return DispatchCandidate(
        candidate.name,
        candidate.capacity_slots,
        candidate.free_slots,
        candidate.requests,
        candidate.waiting_tokens,
        tokens[entry.number],
        candidate.last_dispatch,
    )


@given(st.lists(st.tuples(st.integers(0, 5), CANDIDATES | st.none(), st.booleans()), max_size=30))
def test_an_entry_is_what_it_was_last_put_as(changes: list[tuple[int, DispatchCandidate | None, bool]]) -> None:
    ranking, fresh = (
        InstanceRanking(CANDIDATE_ORDERS["least_loaded"]),
        InstanceRanking(CANDIDATE_ORDERS["least_loaded"]),
    )
    known: dict[int, RankedInstance] = {}
    for number, candidate, is_short in changes:
        if candidate is None:
            known.pop(number, None)
            ranking.remove(number)
        else:
            known[number] = RankedInstance(number, address(number), candidate, 100, is_short)
            ranking.put(known[number])
    for entry in known.values():
        fresh.put(entry)
    assert len(ranking) == len(known)
    for slots in (1, 100, 300):
        assert ranking.best(slots, 0, [], PrefixHits()) == fresh.best(slots, 0, [], PrefixHits())


def test_of_many_alike_few_are_looked_at() -> None:
    looked: list[Address] = []

    def of(instance: Address) -> int:
        looked.append(instance)
        return 0

    ranking = InstanceRanking(CANDIDATE_ORDERS["prefix_affinity"])
    for number in range(1000):
        ranking.put(
            RankedInstance(
                number, address(number), DispatchCandidate("i", 1000, 900 - number, 0), 1000, has_short_queue=True
            )
        )
    assert [entry.number for entry in ranking.best(10, 10, [], PrefixHits({address(999): 800}, 0, of))] == [
        0,
        1,
        2,
        999,
    ]
    assert len(looked) <= 3 * KEPT_PER_SHAPE


def alike(number: int, looked: list[Address]) -> tuple[InstanceRanking, Callable[[Address], int]]:
    """So many instances of one shape, the first the least loaded; the last eight hold 16 tokens. What was `looked` at
    is noted."""
    ranking = InstanceRanking(CANDIDATE_ORDERS["prefix_affinity"])
    for each in range(number):
        candidate = DispatchCandidate("i", 1000, 900 - each, 0)
        ranking.put(RankedInstance(each, address(each), candidate, 1000, has_short_queue=True))

    def of(instance: Address) -> int:
        looked.append(instance)
        return 16 if instance.incarnation >= number - 8 else 0

    return ranking, of


def test_few_are_looked_at_also_where_those_without_the_prefix_are_better() -> None:
    looked: list[Address] = []
    ranking, of = alike(800, looked)
    hits = PrefixHits({address(each): 16 for each in range(792, 800)}, 0, of)
    assert [entry.number for entry in ranking.best(10, 10, [], hits)] == [0, 1, 2, 3]
    assert len(looked) <= 3 * KEPT_PER_SHAPE


def test_of_many_that_hold_the_prefix_few_are_compared() -> None:
    ranking, of = alike(8, [])
    hits = PrefixHits({address(each): 16 for each in range(8)}, 0, of)
    assert [entry.number for entry in ranking.best(10, 10, [], hits)] == [0, 1, 2, 3]
    assert [entry.number for entry in ranking.best(10, 10, [address(0)], hits)] == [1, 2, 3, 4], "one may not take it"


def member_of(address: Address, waiting: int, batch_waiting: int, **fields: Any) -> MemberView:
    return member(address, waiting=waiting + batch_waiting, batch_waiting=batch_waiting, **fields)


MEMBERS = st.builds(
    member_of,
    st.sampled_from([A, B]),
    ready=st.booleans(),
    suspect=st.booleans(),
    waiting=SMALL,
    batch_waiting=SMALL,
    capacity_slots=st.sampled_from([0, 100, 1000]),
    max_positions=st.sampled_from([0, 50]),
)
CHANGES = st.one_of(
    st.tuples(st.sampled_from(["join", "leave", "pause", "resume"]), st.sampled_from([A, B])),
    st.tuples(st.just("view"), st.lists(MEMBERS, max_size=2, unique_by=lambda one: one.address)),
    st.tuples(st.just("delta"), MEMBERS),
    st.tuples(st.just("removed"), st.sampled_from([A, B])),
)


@given(st.lists(CHANGES, max_size=20))
def test_what_is_counted_as_it_changes_is_what_counting_anew_gives(changes: list[tuple[str, Any]]) -> None:
    fleet, joined, known = FleetState(2, 0.1), dict[Address, None](), dict[Address, MemberView]()
    for version, (kind, what) in enumerate(changes, 1):
        if kind == "join":
            fleet.add_instance(what)
            joined.pop(what, None)
            joined[what] = None
        elif kind == "leave":
            fleet.remove_instance(what)
            joined.pop(what, None)
        elif kind in ("pause", "resume"):
            if what in joined:
                getattr(fleet, kind)(what)
        else:
            members = {"view": what, "delta": [what]}.get(kind, [])
            removed = (what,) if kind == "removed" else ()
            fleet.apply_view(MONITOR, FleetView(version, tuple(members), 0 if kind == "view" else 1, removed), 0.0)
            known = {} if kind == "view" else {key: one for key, one in known.items() if key not in removed}
            known |= {one.address: one for one in members}
        serving = [key for key in joined if key in known and known[key].ready and not known[key].suspect]
        assert fleet.serving == serving
        assert fleet.serving_count == len(serving)
        batch = sum(known[key].batch_waiting for key in serving)
        assert fleet.waiting_of(RequestClass.BATCH) == batch
        assert fleet.waiting_of(RequestClass.INTERACTIVE) == sum(known[key].waiting for key in serving) - batch
        limits = {key: fleet.max_length(key) for key, one in known.items() if one.capacity_slots}
        assert fleet.fleet_max_length([]) == max(limits.values(), default=None)
        assert fleet.fleet_max_length([A]) == (max((limits[B],) if B in limits else (0,)) if limits else None)
