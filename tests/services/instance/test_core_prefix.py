"""Prefix reuse in one instance: where sequences start, which slots are shared, and what is evicted under pressure."""

from typing import Any

import pytest

from dunlin.messages.dispatch import Accepted, Continued, PromptScored, Reused
from dunlin.messages.engine import Open, Step
from dunlin.messages.types import SamplingParams
from simulator.engine.prompt_scores import prompt_logprob
from tests.services.instance.bench import Attempt, Bench, figures

PROMPT = [7 * token % 900 for token in range(40)]
"""Two complete blocks, and half a one."""


def ask(bench: Bench, request: int, known: list[int] | None = None, **overrides: Any) -> Attempt:
    return bench.place(request, known=known or PROMPT, **overrides)


def reused(bench: Bench) -> list[tuple[int, int]]:
    """(request, tokens) of whatever was started after its beginning."""
    return [(message.request, message.tokens) for message in bench.dispatcher.of(Reused)]


def first_rows(bench: Bench) -> dict[int, int]:
    """Where each sequence's first row started."""
    starts: dict[int, int] = {}
    for step in bench.sent(Step):
        for sequence, start in zip(step.sequence, step.start, strict=True):
            starts.setdefault(sequence, start)
    return starts


def test_a_second_request_starts_after_the_blocks_of_the_first() -> None:
    bench = Bench()
    ask(bench, 1)
    bench.run_until_quiet()
    second = ask(bench, 2)
    bench.run_until_quiet()
    assert reused(bench) == [(2, 32)]
    assert first_rows(bench) == {1: 0, 2: 32}
    assert second.tokens == second.expected
    opened = bench.sent(Open)[1]
    assert sum(opened.extent_length) == 32
    (message,) = bench.dispatcher.of(Reused)
    assert figures(message.why)["reused_tokens"] == 32


def test_what_is_reused_is_known_when_the_request_is_accepted() -> None:
    bench = Bench()
    ask(bench, 1)
    bench.run_until_quiet()
    ask(bench, 2)
    bench.run_until_quiet()
    assert [message.reused_tokens for message in bench.dispatcher.of(Accepted)] == [0, 32]


def test_the_next_turn_of_a_conversation_reuses_the_answer_too() -> None:
    bench = Bench()
    first = ask(bench, 1, max_tokens=30)
    bench.run_until_quiet()
    # The last token of the answer was sampled and never computed: 69 positions have KV, 4 blocks of them.
    second = ask(bench, 2, [*PROMPT, *first.tokens, 5, 6, 7])
    bench.run_until_quiet()
    assert reused(bench) == [(2, 64)]
    assert second.tokens == second.expected


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    bench = Bench()
    ask(bench, 1, PROMPT[:32])
    bench.run_until_quiet()
    again = ask(bench, 2, PROMPT[:32], sampling=SamplingParams(seed=1))
    bench.run_until_quiet()
    assert reused(bench) == [(2, 16)]
    assert again.tokens == again.expected


def test_a_running_request_shares_its_prompt_as_soon_as_it_is_computed() -> None:
    bench = Bench()
    first = ask(bench, 1, max_tokens=50)
    bench.run(0.1)
    assert first.tokens
    assert not first.is_over
    held = bench.core.slot_table.capacity - bench.core.slot_table.free
    ask(bench, 2, max_tokens=4)
    bench.run(0.02)
    assert reused(bench) == [(2, 32)]
    assert bench.core.slot_table.capacity - bench.core.slot_table.free - held < 32, "the beginning is not there twice"
    bench.run_until_quiet()
    bench.check_empty()


def test_a_chunk_of_a_long_prompt_is_shared_before_the_rest_is_computed() -> None:
    bench = Bench(scheduler__budget_tokens=16, engine={"token_s": 0.001})
    ask(bench, 1, [3] * 100)
    bench.run(0.06)
    ask(bench, 2, [3] * 100)
    bench.run_until_quiet()
    ((_, tokens),) = reused(bench)
    assert 0 < tokens < 96


def test_two_at_the_same_time_keep_their_own_and_leave_one_copy() -> None:
    bench = Bench()
    ask(bench, 9, [1, 2])  # keeps the engine busy, so that both start in the next step
    attempts = [ask(bench, 1, max_tokens=20), ask(bench, 2, max_tokens=40)]
    bench.run_until_quiet()
    assert reused(bench) == []
    assert [attempt.tokens == attempt.expected for attempt in attempts] == [True, True]
    third = ask(bench, 3, [*PROMPT, *attempts[1].tokens])
    bench.run_until_quiet()
    assert reused(bench) == [(3, 64)], "the longer one's answer hangs on the shorter one's prompt"
    assert third.tokens == third.expected


def test_another_tenant_shares_nothing() -> None:
    bench = Bench()
    ask(bench, 1, tenant="a")
    bench.run_until_quiet()
    ask(bench, 2, tenant="b")
    bench.run_until_quiet()
    ask(bench, 3, tenant="a")
    bench.run_until_quiet()
    assert reused(bench) == [(3, 32)]


def test_nothing_is_kept_where_it_is_switched_off() -> None:
    bench = Bench(kv_cache__prefix_caching=False)
    ask(bench, 1)
    bench.run_until_quiet()
    ask(bench, 2)
    bench.run_until_quiet()
    assert reused(bench) == []
    assert bench.core.slot_table.free == bench.core.slot_table.capacity


def test_prefixes_make_room_before_a_sequence_waits_or_is_preempted() -> None:
    bench = Bench(engine={"slots": 128})
    for request in range(1, 20):
        ask(bench, request, [request, *PROMPT], max_tokens=40)
        bench.run_until_quiet()
    report = bench.core.report()
    assert report.preemptions_total == 0
    assert report.cached_slots > 0
    assert report.free_slots + report.cached_slots == 128


def test_the_least_recently_used_prefix_goes_first() -> None:
    bench = Bench(engine={"slots": 128}, scheduler__allocate_ahead_tokens=1)
    old, new = [1, *PROMPT[:33]], [2, *PROMPT[:33]]
    for request, known in enumerate((old, new, old), start=1):
        ask(bench, request, known, max_tokens=2)
        bench.run_until_quiet()
    ask(bench, 4, [3] * 78, max_tokens=2)
    bench.run_until_quiet()
    ask(bench, 5, old, max_tokens=2)
    bench.run_until_quiet()
    ask(bench, 6, new, max_tokens=2)
    bench.run_until_quiet()
    assert reused(bench) == [(3, 32), (5, 32)]


def test_a_prefix_in_use_is_not_given_away() -> None:
    bench = Bench(engine={"slots": 128})
    first = ask(bench, 1, max_tokens=60)
    bench.run(0.1)
    others = [ask(bench, request, [request] * 40, max_tokens=8) for request in range(2, 8)]
    bench.run_until_quiet()
    assert all(each.tokens == each.expected for each in (first, *others))
    bench.check_empty()


def test_the_preempted_finds_what_is_left_of_it() -> None:
    bench = Bench(engine={"slots": 128})
    attempts = [ask(bench, request, [request, *PROMPT[:20]], max_tokens=70) for request in (1, 2)]
    bench.run_until_quiet()
    assert bench.core.report().preemptions_total > 0
    assert all(each.tokens == each.expected for each in attempts)
    continued = bench.dispatcher.of(Continued)
    assert any(figures(message.why)["reused_tokens"] > 0 for message in continued)


@pytest.mark.parametrize(("signal", "found"), [(9, [(2, 32)]), (11, [])])
def test_the_prefixes_outlive_an_engine_unless_it_went_wild(signal: int, found: list[tuple[int, int]]) -> None:
    bench = Bench()
    ask(bench, 1)
    bench.run_until_quiet()
    bench.seat.crash(signal)
    bench.run(3)
    ask(bench, 2)
    bench.run_until_quiet()
    assert reused(bench) == found


def test_hits_are_counted() -> None:
    bench = Bench()
    for request in (1, 2, 3):
        ask(bench, request)
        bench.run_until_quiet()
    report = bench.core.report()
    assert (report.prefix_query_tokens_total, report.prefix_hit_tokens_total) == (120, 64)
    assert report.cached_slots == bench.core.slot_table.capacity - bench.core.slot_table.free


def test_a_prompt_whose_log_probabilities_are_wanted_is_computed_anew() -> None:
    """KV that another request computed has no logits. What the dispatcher has already is not scored again."""
    bench, wanted = Bench(), SamplingParams(prompt_logprobs=1)
    ask(bench, 1)
    bench.run_until_quiet()
    ask(bench, 2, sampling=wanted)
    bench.run_until_quiet()
    ask(bench, 3, sampling=wanted, attempt=2, scored=20)
    ask(bench, 4, sampling=wanted, attempt=2, scored=39)
    bench.run_until_quiet()
    assert reused(bench) == [(3, 16), (4, 32)]
    assert first_rows(bench) == {1: 0, 2: 0, 3: 16, 4: 32}
    assert scored(bench) == {2: [*range(1, 40)], 3: [*range(21, 40)]}


def scored(bench: Bench) -> dict[int, list[int]]:
    """The prompt tokens of each request whose log-probabilities came, as they came."""
    found: dict[int, list[int]] = {}
    for message in bench.dispatcher.of(PromptScored):
        assert len(message.rank) == len(message.logprob) == len(message.top_token) == len(message.top_logprob)
        tokens = range(message.start, message.start + len(message.logprob))
        assert list(message.logprob) == [prompt_logprob(PROMPT[token], token) for token in tokens]
        found.setdefault(message.request, []).extend(tokens)
    return found
