"""What LoongServe's scheduling is told: pending requests, decoding batches, instances, and the times of prefills.

Everything here a manager knows from views, reports and the requests that wait for it. Instances and batches are named
by their index in the sequences that the planner gets, which are its order in every tie.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dunlin.effects import Address

NO_BATCH = -1


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A request that waits for its prefill: `tokens` to compute now, at most `longest` in the end. `number` names it.

    Raises ValueError where it has no tokens, or ends before it begins.
    """

    number: int
    tokens: int
    longest: int

    def __post_init__(self) -> None:
        if not 0 < self.tokens <= self.longest:
            raise ValueError(f"request {self.number} has {self.tokens} tokens of at most {self.longest}")


@dataclass(frozen=True, slots=True)
class ElasticInstance:
    """An instance that computes no prefill. `batch`: the decoding batch that it computes (`NO_BATCH`: it is idle).

    `used_slots` hold KV of that batch; `unused_slots` are free. `location` is its node: members of a batch are chosen
    among neighbours.
    """

    address: Address
    used_slots: int
    unused_slots: int
    batch: int = NO_BATCH
    location: str = ""


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """Requests that decode together on `instances`: `rows` of them, which may grow by `growth_tokens` more in all.

    `inverse_outputs` is Σ 1 / (tokens generated so far), `executed_s` the least time that one of them has decoded for.
    """

    instances: tuple[int, ...]
    rows: int
    growth_tokens: int
    inverse_outputs: float
    executed_s: float


@dataclass(frozen=True, slots=True)
class PrefillPrices:
    """Equation 7 for one degree of parallelism: `fixed_s` + `token_s`·Σ length + `square_s`·Σ length².

    Raises ValueError on a negative price: then batching's splits would not be monotone (`batching`).
    """

    fixed_s: float
    token_s: float
    square_s: float

    def __post_init__(self) -> None:
        if not min(self.fixed_s, self.token_s, self.square_s) >= 0:
            raise ValueError(f"no price of a prefill may be negative: {self}")

    def step_s(self, tokens: int, squares: int) -> float:
        """Seconds of a prefill of so many tokens, the squares of whose lengths sum to `squares`."""
        return self.fixed_s + self.token_s * tokens + self.square_s * squares


@dataclass(frozen=True, slots=True)
class GroupTimes:
    """What the four steps compare with each other.

    `measured`: equation 7 by degree of parallelism, 1 among them; a group of another size computes with the largest
    measured degree that it has instances for. `tipping_s`: the iteration time at which a prefill turns compute-bound.
    `decode_s`: the mean time that finished requests decoded for (AvgLat_d). `move_tokens_per_s`: tokens of KV that one
    instance moves to others a second. `rows_per_master`: decode rows above which a further master is worth having.

    Raises ValueError without a degree of 1, or where a rate is not positive.
    """

    measured: Mapping[int, PrefillPrices]
    tipping_s: float
    decode_s: float
    move_tokens_per_s: float
    rows_per_master: int
    degrees: tuple[int, ...] = field(init=False)
    _by_size: tuple[PrefillPrices, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        degrees = tuple(sorted(self.measured))
        if degrees[:1] != (1,) or not self.move_tokens_per_s > 0 or self.rows_per_master < 1:
            raise ValueError(f"no times to plan with: degrees {degrees}, {self.move_tokens_per_s} tokens/s moved")
        prices = [self.measured[1]]
        for size in range(1, degrees[-1] + 1):
            prices.append(self.measured.get(size, prices[-1]))
        object.__setattr__(self, "degrees", degrees)
        object.__setattr__(self, "_by_size", tuple(prices))

    def prices(self, instances: int) -> PrefillPrices:
        """Equation 7 of a group of so many instances, 1 or more."""
        by_size = self._by_size
        return by_size[instances] if instances < len(by_size) else by_size[-1]

    def prefill_s(self, instances: int, tokens: int, squares: int) -> float:
        """Seconds of one prefill on so many instances; of nothing, or on none: 0."""
        return self.prices(instances).step_s(tokens, squares) if instances and tokens else 0.0


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """What bounds the time of a plan: at most `requests` are dispatched by one plan; batching weighs splits at
    `request_cuts` places among requests and `instance_cuts` among instances (where there are no more, at all of them).
    A decoding batch is to have room for `steps_ahead` more tokens of each row.
    """

    requests: int = 64
    request_cuts: int = 12
    instance_cuts: int = 16
    steps_ahead: int = 64
