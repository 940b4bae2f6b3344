"""Rounds of random orders to two engines; after each, everything is at rest and is checked."""

import itertools
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.engine.soak.checks import check_engine, check_tier
from benchmarks.engine.soak.engine_child import EngineChild, ProcessMemory, SoakError, process_memory
from benchmarks.engine.soak.engine_orders import ANSWER_LIMIT_S, EngineOrders
from benchmarks.engine.soak.granules import ArenaView
from benchmarks.engine.soak.ring import RingOrders
from benchmarks.engine.soak.sequences import MADE_TOKENS, ReferenceText
from benchmarks.engine.soak.tier import SoakTier
from benchmarks.engine.soak.transfers import SoakTransfers
from dunlin.engine.decoder.loading.loader import model_memory
from dunlin.engine.decoder.loading.random_checkpoint import CheckpointShape, write_random_checkpoint
from dunlin.messages.engine import LayerSource, Meet
from dunlin.model.config import load_config

SHAPE = CheckpointShape(
    layers=4, hidden=96, heads=6, kv_heads=2, head_dim=16, intermediate=160, vocab=512, max_positions=4096
)
KV_BYTES = 8 << 20
PROMPTS = (8, 21, 40, 64, 100, 180, 300, 500)
ORDERS_A_ROUND = 300
OPEN_MOST = 8
TIER_ROOMS = 16
WAITED, WAIT_S = 0.5, 0.004
"""After that share of the orders answers are waited for, at most so long."""


@dataclass(frozen=True, slots=True)
class SoakPlan:
    """`rounds` of `orders` each, or as many as `minutes` last."""

    seed: int = 1
    minutes: float = 0.0
    rounds: int = 0
    orders: int = ORDERS_A_ROUND


class EngineSoak:
    """Owns two engine processes that have met, the tier, and the texts that they compute. Use as a context."""

    def __init__(self, plan: SoakPlan) -> None:
        self.plan = plan
        self.rounds = 0
        self.orders: Counter[str] = Counter()
        self._draw = random.Random(plan.seed)
        self._stack = ExitStack()

    def __enter__(self) -> "EngineSoak":
        with ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self, stack: ExitStack) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dunlin-soak-"))) / "model"
        write_random_checkpoint(folder, "llama", SHAPE)
        children = []
        for name in ("first", "second"):
            children.append(EngineChild(folder, name, KV_BYTES))
            stack.callback(children[-1].close)
        first, second = (EngineOrders(child, self._draw) for child in children)
        self.engines = (first, second)
        for one, other in itertools.permutations(self.engines):
            one.tell(Meet(other.child.address, other.child.ready.agent))
        memory = model_memory(load_config(folder), torch.float32, KV_BYTES)
        self.arenas = tuple(ArenaView(one.child.arena_fd, memory.plan) for one in self.engines)
        longest = max(PROMPTS) + MADE_TOKENS
        self.tier = SoakTier(TIER_ROOMS, longest * first.child.ready.kv_bytes_per_token)
        stack.callback(self.tier.close)
        self.transfers = SoakTransfers(self.engines, self.tier, self._draw)
        self.ring = RingOrders(self.engines, self._draw)
        weights_fd = self._weights_file()
        stack.callback(os.close, weights_fd)
        for one, other in itertools.permutations(self.engines):
            one.tell(self.tier.map_command())
            one.layers.choose_source = self._sources(other, weights_fd)
        self.texts = self._make_texts()

    def _weights_file(self) -> int:
        """All layers' weights as they lie in an arena, in a file of shared memory."""
        fd = os.memfd_create("soak-weights")
        parts = [self.arenas[0].layer_weights(layer) for layer in range(SHAPE.layers)]
        self._layer_bytes = len(parts[0])
        os.pwrite(fd, b"".join(parts), 0)
        return fd

    def _sources(self, peer: EngineOrders, fd: int) -> Callable[[random.Random, int], LayerSource]:
        def choose(draw: random.Random, layer: int) -> LayerSource:
            kind = draw.choice(("disk", "memory", "peer"))
            self.orders[f"layers loaded from {kind}"] += 1
            if kind == "peer" and peer.layers.is_settled:
                return LayerSource(layer, peer.child.address)
            path = f"/proc/{os.getpid()}/fd/{fd}" if kind == "memory" else ""
            return LayerSource(layer, None, path, layer * self._layer_bytes if path else 0)

        return choose

    def _make_texts(self) -> list[ReferenceText]:
        """What the first engine makes of each prompt, alone and undisturbed, whole prompt at once."""
        draw, one = random.Random(7), self.engines[0]
        texts = []
        for size in PROMPTS:
            prompt = [draw.randrange(1, SHAPE.vocab) for _ in range(size)]
            each = one.open(ReferenceText(prompt))
            assert each is not None, "an empty engine has room"
            while not each.ended:
                one.tell(one.book.compose(one.step_number(), [each], [size], one.layers.layout))
                self._until(lambda: not each.rows, "an undisturbed step")  # noqa: B023
            texts.append(ReferenceText(prompt, tuple(each.made)))
            one.close(each)
        return texts

    # --- rounds ---

    def run_round(self) -> list[str]:
        """Random orders, rest, and what does not hold then. :raises SoakError: the contract was broken before."""
        handles = self.transfers.handles
        for _ in range(self.plan.orders):
            self._order()
            self._listen(0.0)
            if self._draw.random() < WAITED:
                self._listen(WAIT_S)
        self._rest()
        self.rounds += 1
        closed = range(handles + 1, self.transfers.handles + 1)
        found = [text for one, arena in zip(self.engines, self.arenas, strict=True)
                 for text in check_engine(one, arena, closed)]  # fmt: skip
        return found + check_tier(self.tier, self.transfers)

    def _order(self) -> None:
        first, second = self._draw.sample(self.engines, 2)
        choices: dict[str, tuple[int, Callable[[], object]]] = {
            "open": (12, lambda: self._open(first)),
            "step": (60, first.step),
            "interrupt": (6, first.interrupt),
            "resume": (14, first.resume),
            "discard": (2, first.discard),
            "close": (8, first.close_some),
            "save": (4, lambda: self.transfers.save(first)),
            "restore": (5, lambda: self.transfers.restore(first)),
            "forget": (2, self.transfers.drop_saved),
            "move": (5, lambda: self.transfers.move(first, second)),
            "push": (4, lambda: self.transfers.push(first, second)),
            "ring": (2, lambda: self.ring.begin(self._draw.choice(self.texts))),
            "change layers": (1 if first.layers.is_settled else 30, first.change_layers),
        }
        name = self._draw.choices(list(choices), [weight for weight, _ in choices.values()])[0]
        self.orders[name] += 1
        choices[name][1]()

    def _open(self, one: EngineOrders) -> None:
        if len(one.book.open) < OPEN_MOST:
            one.open(self._draw.choice(self.texts))

    def _listen(self, wait_s: float) -> bool:
        heard = [one.listen(wait_s) for one in self.engines]
        self.transfers.advance()
        self.ring.advance()
        return any(heard)

    def _rest(self) -> None:
        """Until every command is answered, all layers are held and no row is parked."""
        deadline_s = time.monotonic() + ANSWER_LIMIT_S
        while not self._is_at_rest():
            for one in self.engines:
                one.resume()
                if not one.layers.is_settled:
                    one.change_layers()
            if self._listen(0.002):
                deadline_s = time.monotonic() + ANSWER_LIMIT_S
            elif time.monotonic() > deadline_s:
                raise SoakError(f"no answer for {ANSWER_LIMIT_S:g} s: {[one.asked for one in self.engines]}")

    def _is_at_rest(self) -> bool:
        is_still = self.ring.is_quiet and self.transfers.is_quiet
        return is_still and all(
            not len(one.asked) and not one.on_transfer and one.layers.is_settled
            and not any(each.parked or not each.is_quiet for each in one.book.known())
            for one in self.engines
        )  # fmt: skip

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + ANSWER_LIMIT_S
        while not holds():
            if not self._listen(0.01) and time.monotonic() > deadline_s:
                raise SoakError(f"{what} is not answered within {ANSWER_LIMIT_S:g} s")

    # --- figures ---

    def memory(self) -> dict[str, ProcessMemory]:
        """What each process uses now."""
        return {**{one.name: one.child.memory() for one in self.engines}, "orders": process_memory(os.getpid())}

    def counts(self) -> Counter[str]:
        """What was ordered, answered and done, in all."""
        total = Counter({f"order: {name}": count for name, count in self.orders.items()})
        for one in self.engines:
            total.update(one.counts)
            total.update({f"message: {name}": count for name, count in one.asked.counts.items()})
            total["tokens compared"] += one.book.tokens_checked
        total.update({f"begun: {name}": count for name, count in self.transfers.counts.items()})
        total.update({"rings finished": self.ring.finished, "rings left": self.ring.left})
        return total
