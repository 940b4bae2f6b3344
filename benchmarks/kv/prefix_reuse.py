"""What prefix reuse saves: `python -m benchmarks.kv.prefix_reuse [--conversations N] [--turns N] [--rounds N]
[--json]`.

Conversations of several turns, some at once, that all begin with the same system prompt: each turn sends all that was
said so far and a few tokens more. The same conversations run on clusters side by side, in turn: with reuse and the
preset's placement, with reuse and placement by load alone, and without reuse. Every answer must be the same everywhere
(the engines are deterministic). Real processes over the SDK; each round has a new system prompt.
"""

import argparse
import asyncio
import json
import time
from contextlib import AsyncExitStack, ExitStack, aclosing
from dataclasses import asdict, dataclass, field

from benchmarks.harness.fleet_status import reports
from cli.launch.cluster_process import ClusterProcess
from dunlin.client.async_client import AsyncClient
from dunlin.workload.loadgen.stats import nearest_rank

WAYS = {
    "reuse": (),
    "reuse, by load": ("--preset", "least_loaded"),
    "no reuse": ("--no-prefix-reuse",),
}


@dataclass(frozen=True)
class PrefixReusePlan:
    """How much of what; lengths in tokens."""

    conversations: int = 8
    turns: int = 4
    rounds: int = 2
    system: int = 600
    user: int = 20
    answer: int = 24
    instances: int = 2


@dataclass
class ReuseOutcome:
    """Of one way: all rounds together. `first_s`, `later_s`: times to the first token, of first and later turns."""

    first_s: list[float] = field(default_factory=list)
    later_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefill_tokens: int = 0
    seconds: float = 0.0
    texts: list[tuple[int, ...]] = field(default_factory=list)


async def measure(plan: PrefixReusePlan, clients: dict[str, AsyncClient]) -> dict[str, ReuseOutcome]:
    """Every way's outcome; the ways take turns, each round in another order."""
    outcomes = {way: ReuseOutcome() for way in clients}
    for number in range(plan.rounds + 1):
        ways = list(clients)
        for way in ways[number % len(ways) :] + ways[: number % len(ways)]:
            outcome = await _round(plan, clients[way], number)
            if number:  # the first round warms up
                _add(outcomes[way], outcome)
    return outcomes


async def _round(plan: PrefixReusePlan, client: AsyncClient, number: int) -> ReuseOutcome:
    outcome = ReuseOutcome()
    before = await _prefill_tokens(client)
    started_s = time.perf_counter()
    talks = [_talk(plan, client, number, index, outcome) for index in range(plan.conversations)]
    texts = await asyncio.gather(*talks)
    outcome.seconds = time.perf_counter() - started_s
    outcome.texts = [text for talk in texts for text in talk]
    await asyncio.sleep(1.2)  # until every instance has reported
    outcome.prefill_tokens = await _prefill_tokens(client) - before
    return outcome


async def _talk(
    plan: PrefixReusePlan, client: AsyncClient, number: int, index: int, outcome: ReuseOutcome
) -> list[tuple[int, ...]]:
    """One conversation; its answers."""
    known = [3 + (31 * number + 7 * position) % 900 for position in range(plan.system)]
    answers: list[tuple[int, ...]] = []
    await asyncio.sleep(0.03 * index)  # no two conversations start at the very same moment
    for turn in range(plan.turns):
        known += [3 + (17 * index + 5 * turn + position) % 900 for position in range(plan.user)]
        said, first_s, cached = await _ask(plan, client, known, seed=100 * index + turn)
        (outcome.later_s if turn else outcome.first_s).append(first_s)
        outcome.prompt_tokens += len(known)
        outcome.cached_tokens += cached
        known += said
        answers.append(tuple(said))
    return answers


async def _ask(plan: PrefixReusePlan, client: AsyncClient, known: list[int], seed: int) -> tuple[list[int], float, int]:
    """(tokens, time to the first of them, prompt tokens that were cached)."""
    said: list[int] = []
    first_s, cached, started_s = 0.0, 0, time.perf_counter()
    stream = client.stream(known, max_tokens=plan.answer, seed=seed, temperature=1.0, ignore_eos=True)
    async with aclosing(stream) as events:
        async for event in events:
            if event.tokens and not said:
                first_s = time.perf_counter() - started_s
            said += event.tokens
            cached = max(cached, event.cached_tokens)
    return said, first_s, cached


async def _prefill_tokens(client: AsyncClient) -> int:
    return sum(report.prefill_tokens_total for _, report in reports(await client.status()))


def _add(total: ReuseOutcome, more: ReuseOutcome) -> None:
    total.first_s += more.first_s
    total.later_s += more.later_s
    total.prompt_tokens += more.prompt_tokens
    total.cached_tokens += more.cached_tokens
    total.prefill_tokens += more.prefill_tokens
    total.seconds += more.seconds
    total.texts += more.texts


def figures(outcome: ReuseOutcome) -> dict[str, float]:
    """What the table says of one way."""
    return {
        "prompt_tokens": outcome.prompt_tokens,
        "prefill_tokens": outcome.prefill_tokens,
        "hit_rate": outcome.cached_tokens / max(1, outcome.prompt_tokens),
        "first_turn_ttft_p50_ms": 1000 * nearest_rank(sorted(outcome.first_s), 0.5),
        "later_turn_ttft_p50_ms": 1000 * nearest_rank(sorted(outcome.later_s), 0.5),
        "later_turn_ttft_p99_ms": 1000 * nearest_rank(sorted(outcome.later_s), 0.99),
        "seconds": outcome.seconds,
    }


async def _run(plan: PrefixReusePlan, clusters: dict[str, ClusterProcess]) -> dict[str, ReuseOutcome]:
    async with AsyncExitStack() as stack:
        clients = {way: await stack.enter_async_context(AsyncClient(cluster.grpc)) for way, cluster in clusters.items()}
        return await measure(plan, clients)


def run(plan: PrefixReusePlan) -> dict[str, ReuseOutcome]:
    """Start the clusters, measure, end them.

    Raises:
        SystemExit: two ways gave different answers.
    """
    flags = ("--instances", str(plan.instances), "--deterministic", "--threads", "1")
    with ExitStack() as stack:
        clusters = {way: stack.enter_context(ClusterProcess(*flags, *more)) for way, more in WAYS.items()}
        outcomes = asyncio.run(_run(plan, clusters))
    check_same(outcomes)
    return outcomes


def check_same(outcomes: dict[str, ReuseOutcome]) -> None:
    """Every way said the same.

    Raises:
        SystemExit: one did not.
    """
    texts = [sorted(outcome.texts) for outcome in outcomes.values()]
    if any(each != texts[0] for each in texts):
        raise SystemExit("an answer differs with and without reuse: the figures would mean nothing")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in asdict(PrefixReusePlan()).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--json", action="store_true")
    options = vars(parser.parse_args())
    as_json = options.pop("json")
    rows = {way: figures(outcome) for way, outcome in run(PrefixReusePlan(**options)).items()}
    if as_json:
        print(json.dumps(rows))
        return
    print(f"{'':26}" + "".join(f"{way:>18}" for way in rows))
    for name in next(iter(rows.values())):
        print(f"{name:26}" + "".join(f"{row[name]:18.3f}" for row in rows.values()))
    print("every answer is the same in all of them")


if __name__ == "__main__":
    main()
