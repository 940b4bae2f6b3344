"""Section 5.4: where the KV of a prefill stays (scale-down), and which instances a decoding batch gets (scale-up)."""

from collections.abc import Sequence
from dataclasses import dataclass

from dunlin.policies.loongserve.inputs import DecodeBatch, ElasticInstance, GroupTimes, PlanLimits


@dataclass(frozen=True, slots=True)
class KvShare:
    """So many tokens' (or rows') KV go to `instance`."""

    instance: int
    count: int


@dataclass(frozen=True, slots=True)
class ScaleUp:
    """The decoding batch `batch` gets `added` instances, and its rows' new KV goes to `masters`, so many rows each."""

    batch: int
    added: tuple[int, ...]
    masters: tuple[KvShare, ...]
    reason: str


def share_evenly(amount: int, rooms: Sequence[int]) -> list[int] | None:
    """Parts of `amount`, none above its room and otherwise as equal as can be; None: there is no room for all."""
    if amount > sum(rooms):
        return None
    parts, left = [0] * len(rooms), amount
    smallest_first = sorted(range(len(rooms)), key=lambda one: (rooms[one], one))
    for place, index in enumerate(smallest_first):
        # Those still to come have more room: each can take an equal part of what is left.
        parts[index] = min(rooms[index], -(-left // (len(rooms) - place)))
        left -= parts[index]
    return parts


def keep_after_prefill(tokens: int, instances: Sequence[int], unused: Sequence[int]) -> tuple[KvShare, ...]:
    """The fewest of the batch's instances whose slots hold the KV of `tokens` tokens, and how much each keeps.

    Raises ValueError where all of them have too few.
    """
    most_first = sorted(range(len(instances)), key=lambda one: (-unused[one], one))
    chosen: list[int] = []
    room = 0
    for index in most_first:
        chosen.append(index)
        room += unused[index]
        if room >= tokens:
            break
    parts = share_evenly(tokens, [unused[index] for index in chosen])
    if parts is None:
        raise ValueError(f"{tokens} tokens of KV have no room in {room} slots")
    return tuple(KvShare(instances[index], part) for index, part in zip(chosen, parts, strict=True))


def scale_up(
    index: int,
    batch: DecodeBatch,
    instances: Sequence[ElasticInstance],
    spare: list[int],
    times: GroupTimes,
    limits: PlanLimits,
) -> ScaleUp | None:
    """More instances for a batch that runs out of slots, or has more rows than its instances compute well; None: it
    needs none, or there is none. What it gets is taken out of `spare`, idle instances of which those with the most
    unused slots come first.
    """
    unused = sum(instances[one].unused_slots for one in batch.instances)
    wanted = batch.rows * limits.steps_ahead
    lacks_room = unused < wanted
    masters = -(-batch.rows // times.rows_per_master)
    added: list[int] = []
    while spare and (unused < wanted or len(batch.instances) + len(added) < masters):
        chosen = max(spare, key=lambda one: (instances[one].unused_slots, -one))
        spare.remove(chosen)
        added.append(chosen)
        unused += instances[chosen].unused_slots
    if not added:
        return None
    members = (*batch.instances, *added)
    reason = "slots" if lacks_room else "rows"
    return ScaleUp(index, tuple(added), choose_masters(batch.rows, members, instances, times), reason)


def choose_masters(
    rows: int, members: Sequence[int], instances: Sequence[ElasticInstance], times: GroupTimes
) -> tuple[KvShare, ...]:
    """The rows that each master computes and stores the new KV of: as few masters as the rows need, those with the most
    unused slots, and the rows spread evenly over them. With too few slots for all rows: as many as there are slots for.
    """
    most_first = sorted(members, key=lambda one: (-instances[one].unused_slots, one))
    rooms = [instances[one].unused_slots for one in most_first]
    count = max(1, -(-rows // times.rows_per_master))
    while count < len(rooms) and sum(rooms[:count]) < rows:
        count += 1
    parts = share_evenly(min(rows, sum(rooms[:count])), rooms[:count])
    assert parts is not None
    return tuple(KvShare(one, part) for one, part in zip(most_first, parts, strict=False) if part)
