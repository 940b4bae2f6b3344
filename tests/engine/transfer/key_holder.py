"""A process that holds some of a sequence's keys: `python -m` this file computes its part, and sends it to a peer."""

import json
import sys
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dunlin.effects import Address
from dunlin.engine.attention.base import BatchRow, run_pass
from dunlin.engine.attention.registry import ATTENTION_BACKENDS
from dunlin.engine.attention.spans import slot_run
from dunlin.engine.transfer.host_tier import Bytes
from dunlin.messages.types import Payload, Priority, Region, i64
from tests.engine.attention.reference import make_kv, make_query
from tests.engine.transfer.engines import Engine, peer_transfer

ROOM_BYTES = 1 << 22
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 16
ASKER = Address("engine", "asker")


@dataclass(frozen=True)
class Problem:
    """Attention of the last `tokens` of `length` tokens, whose keys are split."""

    backend: str
    dtype: str
    length: int
    tokens: int
    seed: int

    @property
    def queries(self) -> range:
        return range(self.length - self.tokens, self.length)

    def query(self) -> Tensor:
        return make_query(self.tokens, HEADS).to(getattr(torch, self.dtype))

    def keys_values(self, held: list[range]) -> Tensor:
        """Slots by position; those that are not held are no numbers."""
        whole = make_kv(self.length, KV_HEADS, self.seed).to(getattr(torch, self.dtype))
        kept = torch.full_like(whole, float("nan"))
        for span in held:
            kept[span.start : span.stop] = whole[span.start : span.stop]
        return kept


def tensor_bytes(*tensors: Tensor) -> Bytes:
    """The tensors one after another."""
    return np.concatenate([each.contiguous().view(torch.uint8).numpy().reshape(-1) for each in tensors])


def contributions(problem: Problem, held: list[range]) -> list[tuple[str, range, Bytes]]:
    """What the holder sends: partial results in fp32, and K/V where the backend needs them."""
    backend, query, kept = ATTENTION_BACKENDS[problem.backend](), problem.query(), problem.keys_values(held)
    found = []
    for span in held:
        results, plain = backend.share([span], problem.length)
        for (part,) in results:
            row = BatchRow(0, problem.tokens, problem.queries, (slot_run(part, part.start),))
            out, lse = run_pass(backend.plan([row]).start(query, kept, dtype=torch.float32), lambda: None)
            found.append(("partial", part, tensor_bytes(out, lse)))
        found += [("keys", part, tensor_bytes(kept[part.start : part.stop])) for part in plain]
    return found


def send(engine: Engine, problem: Problem, held: list[range], room: int) -> list[list[object]]:
    """Each contribution goes to the next stretch of the peer's room: kind, span, bytes; then the checksum of all."""
    parts = contributions(problem, held)
    content = np.concatenate([each for _, _, each in parts])
    engine.rooms.view(1, len(content))[:] = content
    payload = {"payload": Payload.PARTIAL, "room": 1, "peer_handle": room, "length_bytes": len(content)}
    columns = {"extent_start": i64(), "extent_length": i64(), "region": Region(0, 1, 0, problem.length)}
    engine.queue.add(peer_transfer(1, ASKER, priority=Priority.ACTIVATION, **payload, **columns))
    (ended,) = engine.finish()
    assert ended.done.detail == "", ended.done.detail
    told: list[list[object]] = [[kind, span.start, span.stop, len(each)] for kind, span, each in parts]
    return [*told, ["checksum", ended.done.checksum, len(content), 0]]


if __name__ == "__main__":
    torch.set_num_threads(1)
    made = Engine("holder", room_bytes=ROOM_BYTES)
    agent, given, spans, asked_room = json.loads(sys.stdin.readline())
    made.peers.meet(ASKER, bytes.fromhex(agent))
    print(json.dumps(send(made, Problem(**given), [range(*span) for span in spans], asked_room)), flush=True)
