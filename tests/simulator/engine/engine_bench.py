"""An engine of eight layers in a world, an instance that records its answers, and short forms of the messages."""

from typing import Any

from dunlin.effects import Address, Joined, Message
from dunlin.messages.engine import MapHost, Open, Step, Transfer
from dunlin.messages.types import HostRegion, Region, SamplingParams, TransferKind, i8, i32, i64
from simulator.cluster.engine_supervisor import SimulatedEngineSupervisor
from simulator.cluster.world import World
from simulator.engine.host_memory import SimulatedHostMemory
from simulator.engine.model import SimulatedEngine, engine_settings

ME = Address("instance", "i", 1)
ENGINE = Address("engine", "i")
STEP_S = 0.08


class Bench:
    """An engine of eight layers whose steps take 80 ms, and an instance that records."""

    def __init__(self, **settings: Any) -> None:
        self.world = World(0.0)
        self.heard: list[tuple[float, Message]] = []
        self.world.add(ME, self)
        defaults = {"step_s": STEP_S, "move_s": 0.01, "move_busy_s": 0.0, "layers": i32(range(8)), "slots": 1024}
        self.tier = SimulatedHostMemory()
        self.supervisor = SimulatedEngineSupervisor(
            self.world, ME, engine_settings(**{**defaults, **settings}), self.tier
        )
        self.world.run_to(1.0)
        self.tell(MapHost("/tier", 1 << 20, 1))
        self.heard.clear()

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Any]:
        if not isinstance(message, Joined):
            self.heard.append((round(now_s - 1.0, 6), message))
        return []

    @property
    def engine(self) -> SimulatedEngine:
        return self.supervisor.engine

    def tell(self, *messages: Message, at_s: float | None = None) -> None:
        """Now, or so many seconds after the start."""
        if at_s is not None:
            self.world.run_to(1.0 + at_s)
        for message in messages:
            self.world.post(ME, ENGINE, message, 0.0)

    def run(self) -> None:
        self.world.run_to(60.0)

    def of(self, kind: type[Any]) -> list[tuple[float, Any]]:
        self.run()
        return [(at_s, message) for at_s, message in self.heard if isinstance(message, kind)]


def open_of(number: int, length: int = 10, **fields: Any) -> Open:
    values = {"max_tokens": 5, "sampling": SamplingParams(seed=number), "prompt_tokens": length}
    return Open(number, **{"tokens": i32(range(length)), **values, **fields})


def step_of(number: int, *rows: tuple[int, int, int], **fields: Any) -> Step:
    """Rows of (sequence, start, stop); sequence n has the slots from 100 n on. All sample."""
    extents = {
        "extent_row": i32(range(len(rows))),
        "extent_start": i64(100 * sequence + start for sequence, start, _ in rows),
        "extent_length": i64(stop - start for _, start, stop in rows),
    }
    sequences, starts, stops = (i64(column) for column in zip(*rows, strict=True))
    sample = {"sample": i8([1] * len(rows))}
    return Step(number, sequences, starts, stops, **{**sample, **extents, **fields})


def move_of(number: int, sequence: int = 1, start: int = 0, stop: int = 10, **fields: Any) -> Transfer:
    values: dict[str, Any] = {"kind": TransferKind.SLAB_TO_HOST, "host": HostRegion(1, 1, 0, (stop - start) * 64)}
    slots = {"extent_start": i64([100 * sequence + start]), "extent_length": i64([stop - start])}
    return Transfer(number, sequence=sequence, region=Region(0, 8, start, stop), **{**values, **slots, **fields})


def written(**settings: Any) -> Bench:
    """Sequence 1's ten tokens are in the slab; it is 0.08 s."""
    bench = Bench(**settings)
    bench.tell(open_of(1), step_of(1, (1, 0, 10)))
    bench.tell(at_s=0.08)
    return bench
