"""Decision messages that tests of their sentences and of whole explanations share."""

from dunlin.effects import Address
from dunlin.messages.dispatch import Place
from dunlin.messages.engine import Step
from dunlin.messages.pool import ReserveRegion
from dunlin.messages.types import Figure, Region, RejectedOption, Why, i8, i32, i64

D = Address("dispatcher", "d0", 0xC)
I0 = Address("instance", "i0", 10)
I1 = Address("instance", "i1", 11)
KV = Address("kvstore", "kv", 5)
CLIENT = Address("client", "http-1")
MONITOR = Address("monitor", "m", 4)
MANAGER = Address("global_manager", "g", 6)
ENGINE = Address("engine", "i0")
WHY = Why("least_loaded", "i0", (Figure("load", 0.25), Figure("slots", 12)), (RejectedOption("i1", "load 0.5"),))


def place(attempt: int = 1, *, tokens: int = 8, prompt_tokens: int = 8, request: int = 1) -> Place:
    return Place(request, attempt, i32(range(tokens)), prompt_tokens, 16, why=WHY)


def step(*lengths: int) -> Step:
    empty, starts = i64(), i64([10] * len(lengths))
    stops = i64(10 + length for length in lengths)
    return Step(7, i64(range(len(lengths))), starts, stops, i8([1] * len(lengths)), i32(), empty, empty, why=WHY)


def region_asked() -> ReserveRegion:
    return ReserveRegion(3, D, 1, 1, Region(0, 2, 0, 8), 4096, "fp32", "w", WHY)
