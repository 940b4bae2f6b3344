"""Section 5.3: the dispatched requests in batches, each on instances of its own: dynamic programming, equation 5.

Requests are in descending order of length, instances in the order in which neighbours share a batch; a batch is a run
of both. f[i][k] is the least sum of input latencies of the first i requests on the first k instances. Instances may be
left out between batches.

Equation 6 (splits are monotone in i and in k) does not hold: a degree that pays on more instances only moves a split
back (tests/policies/loongserve/test_batching.py has the numbers). What holds, for equation 7 with prices of 0 or more,
is the quadrangle inequality among requests at a fixed pair of instances (h, k): a batch's latency is its requests times
a sum over them, and more of both in one interval is worth more than the same in two. So there the best split of the
requests never falls as i grows, also under the memory constraint, which forbids a split before a place that never falls
either. `best_batches` searches so, in O(m²·n·log n), and finds what `best_batches_plainly` finds in O(m²·n²).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from dunlin.policies.loongserve.inputs import GroupTimes, PrefillPrices

Split = tuple[int, int]
_SWEPT = 8
"""Rows that are searched one after the other, which takes less than to halve them."""


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Requests `[start, stop)` in order of length are prefilled together on the instances `[first, last)`, in `step_s`
    seconds.
    """

    start: int
    stop: int
    first: int
    last: int
    step_s: float

    @property
    def latency_s(self) -> float:
        """The sum of the input latencies of its requests."""
        return (self.stop - self.start) * self.step_s


class BatchingProblem:
    """Requests and instances that may be cut at the places `request_cuts` and `instance_cuts`, both with 0 and the end.

    `lengths` in descending order, `room` the unused slots of each instance. `sizes`: how many instances a batch may
    have; empty: any number. `needs`: the slots that each request needs, if they are not its length.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        room: Sequence[int],
        times: GroupTimes,
        request_cuts: Sequence[int] = (),
        instance_cuts: Sequence[int] = (),
        sizes: Sequence[int] = (),
        needs: Sequence[int] = (),
    ) -> None:
        self.times = times
        self._sizes = sizes
        self.requests = list(request_cuts or range(len(lengths) + 1))
        self.instances = list(instance_cuts or range(len(room) + 1))
        self._all_tokens = list(accumulate(lengths, initial=0))
        self._all_squares = list(accumulate((each * each for each in lengths), initial=0))
        self._all_room = list(accumulate(room, initial=0))
        self._all_needs = list(accumulate(needs or lengths, initial=0))
        self.tokens = [self._all_tokens[at] for at in self.requests]
        self.squares = [self._all_squares[at] for at in self.requests]
        self.room = [self._all_room[at] for at in self.instances]
        self.needs = [self._all_needs[at] for at in self.requests]
        self._upto_s: dict[PrefillPrices, list[float]] = {}

    def firsts(self, k: int) -> list[int]:
        """The cuts h < k such that a batch may have the instances between the two; the smallest batch first."""
        last = self.instances[k]
        return [h for h in range(k - 1, -1, -1) if not self._sizes or last - self.instances[h] in self._sizes]

    def upto_s(self, prices: PrefillPrices) -> list[float]:
        """At each cut of the requests, what all before it take in one prefill, but for the fixed part."""
        if prices not in self._upto_s:
            token_s, square_s = prices.token_s, prices.square_s
            pairs = zip(self.tokens, self.squares, strict=True)
            self._upto_s[prices] = [token_s * tokens + square_s * squares for tokens, squares in pairs]
        return self._upto_s[prices]

    def batch(self, start: int, stop: int, first: int, last: int) -> BatchPlan | None:
        """The batch of these requests on these instances; None: there is no room."""
        tokens = self._all_tokens[stop] - self._all_tokens[start]
        if self._all_needs[stop] - self._all_needs[start] > self._all_room[last] - self._all_room[first]:
            return None
        squares = self._all_squares[stop] - self._all_squares[start]
        return BatchPlan(start, stop, first, last, self.times.prefill_s(last - first, tokens, squares))


class _Table:
    """f, and where its last batch begins."""

    def __init__(self, problem: BatchingProblem) -> None:
        rows, columns = len(problem.requests), len(problem.instances)
        self.problem = problem
        self.cost = [[0.0] + [inf] * (rows - 1) for _ in range(columns)]
        self.split: list[list[Split | None]] = [[None] * rows for _ in range(columns)]

    def leave_out(self, k: int) -> None:
        """Begin f[·][k] with what f[·][k - 1] is: the last instance is left out. Its splits are read there."""
        self.cost[k] = self.cost[k - 1][:]

    def batches(self) -> list[BatchPlan] | None:
        """The best batches, in order of the requests; None: there is no room for all of them."""
        problem, i = self.problem, len(self.problem.requests) - 1
        if self.cost[-1][i] == inf:
            return None
        found: list[BatchPlan] = []
        k = len(problem.instances) - 1
        while i:
            while k and self.cost[k - 1][i] == self.cost[k][i]:
                k -= 1
            split = self.split[k][i]
            assert split is not None
            j, h = split
            batch = problem.batch(problem.requests[j], problem.requests[i], problem.instances[h], problem.instances[k])
            assert batch is not None
            found.append(batch)
            i, k = j, h
        return found[::-1]


def best_batches_plainly(problem: BatchingProblem) -> list[BatchPlan] | None:
    """Equation 5 as it stands. None: there is no room for all requests."""
    table = _Table(problem)
    for k in range(1, len(problem.instances)):
        table.leave_out(k)
        for h in problem.firsts(k):
            prices = problem.times.prices(problem.instances[k] - problem.instances[h])
            for i in range(1, len(problem.requests)):
                for j in range(i):
                    if problem.needs[i] - problem.needs[j] <= problem.room[k] - problem.room[h]:
                        tokens = problem.tokens[i] - problem.tokens[j]
                        squares = problem.squares[i] - problem.squares[j]
                        many = problem.requests[i] - problem.requests[j]
                        cost = table.cost[h][j] + many * prices.step_s(tokens, squares)
                        if cost < table.cost[k][i]:
                            table.cost[k][i], table.split[k][i] = cost, (j, h)
    return table.batches()


def best_batches(problem: BatchingProblem) -> list[BatchPlan] | None:
    """Equation 5 by splits of requests that never fall as requests are added. None: there is no room for all."""
    table = _Table(problem)
    for k in range(1, len(problem.instances)):
        table.leave_out(k)
        for h in problem.firsts(k):
            _Column(table, h, k).fill()
    return table.batches()


class _Column:
    """f[·][k] where the last batch has the instances from h on."""

    def __init__(self, table: _Table, h: int, k: int) -> None:
        problem = table.problem
        self._first = h
        self._before = table.cost[h]
        self._cost, self._split = table.cost[k], table.split[k]
        self._requests, self._needs = problem.requests, problem.needs
        self._room = problem.room[k] - problem.room[h]
        prices = problem.times.prices(problem.instances[k] - problem.instances[h])
        self._fixed_s, self._upto_s = prices.fixed_s, problem.upto_s(prices)

    def fill(self) -> None:
        """All i at which there is a split with room."""
        before, needs, room = self._before, self._needs, self._room
        last = len(before) - 1
        while before[last] == inf:
            last -= 1
        self._earliest = earliest = [0] * len(before)
        low = 0
        for i in range(len(before)):
            while needs[i] - needs[low] > room:
                low += 1
            earliest[i] = low
        self._rows = [i for i in range(1, len(before)) if earliest[i] < i and earliest[i] <= last]
        if self._rows:
            self._halve(0, len(self._rows) - 1, 0, last)

    def _halve(self, first: int, last: int, left: int, right: int) -> None:
        """Those rows from `first` to `last`, whose best splits lie from `left` to `right`."""
        if last - first < _SWEPT:
            for i in self._rows[first : last + 1]:
                left = self._at(i, max(left, self._earliest[i]), min(right, i - 1))
            return
        middle = (first + last) // 2
        i = self._rows[middle]
        best = self._at(i, max(left, self._earliest[i]), min(right, i - 1))
        self._halve(first, middle - 1, left, best)
        self._halve(middle + 1, last, best, right)

    def _at(self, i: int, low: int, high: int) -> int:
        """The first best split of i from `low` to `high`."""
        before, requests, upto_s = self._before, self._requests, self._upto_s
        whole_s, count = self._fixed_s + upto_s[i], requests[i]
        best, least = low, inf
        for j in range(low, high + 1):
            cost = before[j] + (count - requests[j]) * (whole_s - upto_s[j])
            if cost < least:
                best, least = j, cost
        if least < self._cost[i]:
            self._cost[i], self._split[i] = least, (best, self._first)
        return best
