"""Adapters in one instance: a request runs with its own, and KV of one is never another's, under pressure and crashes.

The modelled engine's audit takes the adapter for a part of every token's KV.
"""

import random
from typing import Any

import pytest

from dunlin.kv import prefix_hash
from dunlin.messages.dispatch import Adopt, Adopted, NotHeld, Refusal, Refused, Reused
from dunlin.messages.engine import Open, Step
from tests.services.instance.bench import OTHER, Attempt, Bench, D, figures, make_place, of, only, ready_core

ADAPTERS = ("aa", "bb")
CHOICES = ("", *ADAPTERS)
PROMPT = [7 * token % 900 for token in range(40)]


def make_bench(**settings: Any) -> Bench:
    engine = {"adapters": ADAPTERS, **settings.pop("engine", {})}
    return Bench(engine=engine, **settings)


def opened(bench: Bench) -> list[str]:
    return [message.adapter for message in bench.sent(Open)]


def test_the_engine_is_told_the_requests_adapter() -> None:
    bench = make_bench()
    for request, adapter in enumerate(CHOICES, 1):
        bench.place(request, adapter=adapter)
    bench.run_until_quiet()
    assert opened(bench) == [*CHOICES]


def test_rows_of_several_adapters_share_a_step() -> None:
    bench = make_bench()
    attempts = [bench.place(request, adapter=adapter) for request, adapter in enumerate(CHOICES, 1)]
    bench.run_until_quiet()
    assert any(len(step.sequence) == len(CHOICES) for step in bench.sent(Step))
    assert all(attempt.tokens == attempt.expected for attempt in attempts)


def test_an_adapter_that_is_not_there_is_refused_by_name() -> None:
    core = ready_core({"adapters": ADAPTERS})
    refused = only(Refused, core.give(D, make_place(adapter="cc")))
    assert refused.reason is Refusal.NO_ADAPTER
    assert figures(refused.why)["adapters"] == 2
    assert len(core.core.sequences) == 0


def test_a_prefix_is_reused_with_the_same_adapter_alone() -> None:
    bench = make_bench()
    for request, adapter in enumerate(("", "aa", "bb", "aa", "", "bb"), 1):
        bench.place(request, known=PROMPT, adapter=adapter)
        bench.run_until_quiet()
    found = [(message.request, message.tokens) for message in bench.dispatcher.of(Reused)]
    assert found == [(4, 32), (5, 32), (6, 32)]


@pytest.mark.parametrize("adapter", CHOICES)
def test_regions_of_another_adapter_are_not_taken(adapter: str) -> None:
    bench = make_bench(tier_bytes=1 << 16, engine={"slots": 256})
    tokens = [1, *range(79)]
    bench.leave_behind(make_place(1, known=tokens, prompt_tokens=60, attempt=2), (0, 32))  # of no adapter
    attempt = bench.place(1, known=tokens, prompt_tokens=60, max_tokens=40, attempt=2, adapter=adapter)
    bench.run_until_quiet()
    assert attempt.tokens == attempt.expected
    assert bench.core.report().claimed_tokens_total == (0 if adapter else 32)


@pytest.mark.parametrize("seed", range(12))
def test_under_pressure_and_crashes_no_sequence_reads_anothers_kv(seed: int) -> None:
    """Three models with the same prompts, too few slots, preemption with and without a host tier, engines that die."""
    draw = random.Random(seed)
    bench = make_bench(tier_bytes=(1 << 16) if seed % 3 else None, engine={"slots": 192, "restart_s": 0.02})
    prompts = [[draw.randrange(3) for _ in range(draw.choice((20, 40, 56)))] for _ in range(2)]
    attempts: list[Attempt] = []
    for request in range(1, 25):
        adapter, known = draw.choice(CHOICES), draw.choice(prompts)
        attempts.append(bench.place(request, known=known, max_tokens=draw.randrange(4, 40), adapter=adapter))
        bench.run(draw.random() * 0.1)
        if draw.random() < 0.1:
            bench.seat.crash()
            bench.run(0.1)
    bench.run_until_quiet()
    bench.check_empty()
    assert all(attempt.tokens == attempt.expected for attempt in attempts)
    assert {*opened(bench)} == {*CHOICES}


def adopt(adapter: str, tokens: list[int]) -> Adopt:
    root = prefix_hash.chain_root("t", "", adapter=adapter)
    chain = prefix_hash.chain_of(root, tokens, len(tokens))
    return Adopt(41, 1, "req-a-1", "t", len(tokens), 1, chain)


def test_only_who_names_the_same_adapter_adopts_the_request() -> None:
    place = make_place(1, known=[7, 8, 9], prompt_tokens=2, key="req-a-1", tenant="t", adapter="aa")
    for adapter, kind in (("aa", Adopted), ("bb", NotHeld), ("", NotHeld)):
        core = ready_core({"adapters": ADAPTERS})
        core.give(D, place)
        assert len(of(kind, core.give(OTHER, adopt(adapter, [7, 8, 9])))) == 1, adapter
