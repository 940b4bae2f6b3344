"""Engines of one process that step together: each with its own arena and rooms, and the others' memory mapped."""

import os
import random
from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from dunlin.effects import Address
from dunlin.engine.decoder import numerics
from dunlin.engine.decoder.loading.loader import load_model
from dunlin.engine.execution.engine_transfers import OwnMemory
from dunlin.engine.execution.runner import EngineRunner
from dunlin.engine.transfer.arena_slots import kv_file_runs, slab_of
from dunlin.engine.transfer.peer_access import PeerAccess
from dunlin.engine.transfer.transit_rooms import TransitRooms
from dunlin.messages.engine import Close, Meet, Met, Step
from dunlin.messages.types import GroupKind, Keep, SamplingParams, Serve, i32, i64
from tests.engine.build import SteppingClock, nothing
from tests.engine.commands import make_open, make_step

SAMPLING = SamplingParams(temperature=0.0, logprobs=0)
Span = tuple[int, int, int, int]
"""(start, stop, stride, peer) of tokens elsewhere."""


class Member:
    """One engine, which has met those given."""

    def __init__(
        self,
        number: int,
        directory: Path,
        mode: str,
        dtype: str = "float32",
        room_bytes: int = 1 << 16,
        kv_dtype: str = "",
    ) -> None:
        self.number = number
        chosen = numerics.deterministic_numerics() if mode == "deterministic" else numerics.fast_numerics(mode)
        arena_fd, page_fd = os.memfd_create("arena"), os.memfd_create("page")
        self.loaded = load_model(directory, dtype, 8 << 20, chosen, arena_fd, kv_dtype=kv_dtype)
        memory = slab_of(self.loaded.arena, self.loaded.decoder.kv)
        self.rooms = rooms = TransitRooms(8, room_bytes)
        self.access = PeerAccess(page_fd, rooms)
        self.access.publish(arena_fd, memory, kv_file_runs(self.loaded.arena))
        own = OwnMemory(memory, rooms, self.access)
        self.runner = EngineRunner(self.loaded.decoder, self.loaded.slots, SteppingClock(), memory=own)
        self.events: list[Any] = []
        self.address = Address("engine", f"member-{number}")
        self._fds = (arena_fd, page_fd)

    def close(self) -> None:
        """Give the memory back."""
        self.access.close()
        self.loaded.arena.close()
        for fd in self._fds:
            os.close(fd)

    def tell(self, *messages: Any) -> None:
        for message in messages:
            self.events += self.runner.receive(message)

    def answers(self) -> list[Any]:
        """What it has answered since the last call."""
        events, self.events = self.events, []
        return events

    def poison(self, slots: range) -> None:
        """What is in these slots may not be read."""
        for layer in self.loaded.decoder.kv:
            layer[slots.start : slots.stop].fill_(float("nan"))


def meet_all(members: Sequence[Member]) -> list[Member]:
    for each in members:
        for other in members:
            if other is not each:
                each.tell(Meet(other.address, other.access.agent))
        assert all(isinstance(event, Met) and not event.detail for event in each.answers())
    return list(members)


def run_all(members: Sequence[Member]) -> None:
    """Compute turn by turn until every step is answered."""
    turns = 0
    while any(each.runner.busy for each in members):
        for each in members:
            if each.runner.busy:
                each.events += each.runner.work(nothing)
        turns += 1
        assert turns < 100_000, [str(each.runner.steps) for each in members]


def group(me: Member, members: Sequence[Member], kind: GroupKind, exchange: int) -> dict[str, Any]:
    """A step's columns of peers, in order of their numbers. Room r of a member is written by member r - 1."""
    others = [each for each in members if each is not me]
    rooms = {"own_room": i64(each.number + 1 for each in others), "peer_room": i64([me.number + 1] * len(others))}
    return {"group": kind, "peers": tuple(each.address for each in others), "exchange": exchange, **rooms}


def peer_index(me: Member, other: int) -> int:
    """Where a member is among the peers of another."""
    return other - (other > me.number)


def span_columns(spans: Sequence[tuple[int, Span]]) -> dict[str, Any]:
    """Of (row, span)."""
    return {
        "span_row": i32(row for row, _ in spans),
        "span_start": i64(span[0] for _, span in spans),
        "span_stop": i64(span[1] for _, span in spans),
        "span_stride": i64(span[2] for _, span in spans),
        "span_holder": i32(span[3] for _, span in spans),
    }


def serve(master: int, parts: Sequence[tuple[int, int, int, list[tuple[int, int, int]]]]) -> Serve:
    """Parts are (sequence, start, stop, [(first token, last, slot)])."""
    spans = [(part, *span) for part, (_, _, _, own) in enumerate(parts) for span in own]
    return Serve(
        sequence=i64(part[0] for part in parts),
        start=i64(part[1] for part in parts),
        stop=i64(part[2] for part in parts),
        stride=i64([1] * len(parts)),
        master=i32([master] * len(parts)),
        span_part=i32(span[0] for span in spans),
        span_start=i64(span[1] for span in spans),
        span_stop=i64(span[2] for span in spans),
        slot=i64(span[3] for span in spans),
    )


def keep(row: int, layers: int, start: int, stop: int, slot: int) -> Keep:
    return Keep(i32([row]), i32([0]), i32([layers]), i64([start]), i64([stop]), i64([slot]))


def columns_of(message: Keep) -> list[Any]:
    return [getattr(message, each.name) for each in fields(message)]


def no_rows(step: int, **overrides: Any) -> Step:
    return make_step(step, **overrides)


def cut_at_random(length: int, holders: int, seed: int, most: int = 7) -> list[tuple[int, int, int]]:
    """(start, stop, holder) of pieces that make up `length` tokens."""
    draw = random.Random(seed)
    cuts = [0, *sorted(draw.sample(range(1, length), draw.randrange(1, most))), length]
    return [(start, stop, draw.randrange(holders)) for start, stop in pairwise(cuts)]


def whole_text(member: Member, text: Sequence[int], count: int, slot: int) -> list[tuple[int, float]]:
    """Tokens and log-probabilities of one engine alone; the KV of the text stays in its slots."""
    member.tell(make_open(900, text, sampling=SAMPLING, max_tokens=count + 1), make_step(1, (900, 0, len(text), slot)))
    for more in range(count - 1):
        at = len(text) + more
        member.tell(make_step(2 + more, (900, at, at + 1, slot + at)))
    run_all([member])
    found = [(event.token[0], event.logprob[0]) for event in member.answers()]
    member.tell(Close(900))
    return found
