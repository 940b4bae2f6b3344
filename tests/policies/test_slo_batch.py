"""Steps as large as the objectives allow, filled up with batch work."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from dunlin.cost.models import BatchCounts
from dunlin.messages.types import RequestClass
from dunlin.policies.batch import BATCH_POLICIES
from dunlin.policies.slo_batch import LEAST_CHUNK_TOKENS, harvest, slo_aware
from dunlin.policies.step_budget import BatchCandidate, StepBudget

BATCH = RequestClass.BATCH


@dataclass(frozen=True)
class Linear:
    """A millisecond per prompt token, ten per decode row, one per hundred tokens of a decode row's context."""

    def step_s(self, batch: BatchCounts) -> float:
        return 0.001 * batch.prefill_tokens + 0.01 * batch.decode_rows + 0.00001 * batch.decode_context


def budget(contexts: list[int], **changes: float | None) -> StepBudget:
    values = {"tokens": 512, "most_tokens": 2048, "tpot_s": 0.1, "ttft_s": 1.0, "times": Linear()}
    return StepBudget(contexts=contexts, **values | changes)  # type: ignore[arg-type]


def prompt(tokens: int, request_class: RequestClass = RequestClass.INTERACTIVE) -> BatchCandidate:
    return BatchCandidate(tokens, False, request_class)


def decode(request_class: RequestClass = RequestClass.INTERACTIVE) -> BatchCandidate:
    return BatchCandidate(1, True, request_class)


def test_the_time_per_token_bounds_a_step_in_which_interactive_rows_decode() -> None:
    rows = [prompt(500, BATCH), decode(), prompt(30)]
    assert slo_aware(rows, budget([0, 0, 0])) == [59, 1, 30]


def test_the_time_to_the_first_token_bounds_a_step_of_prompts() -> None:
    assert slo_aware([prompt(700), prompt(500, BATCH)], budget([0, 0])) == [700, 300]
    assert slo_aware([prompt(700), prompt(500)], budget([0, 0])) == [700, 300]


def test_a_step_of_batch_work_alone_has_no_objective_but_the_largest_size() -> None:
    rows = [decode(BATCH), prompt(1500, BATCH), prompt(900, BATCH), prompt(3, BATCH)]
    assert slo_aware(rows, budget([0] * 4, tpot_s=0.001, ttft_s=0.001)) == [1, 1500, 547, 0]


def test_batch_rows_decode_before_batch_prompts_and_the_oldest_first() -> None:
    rows = [decode(BATCH), prompt(90, BATCH), decode(BATCH), decode(), decode(BATCH)]
    assert slo_aware(rows, budget([0] * 5, tpot_s=0.035)) == [1, 4, 1, 1, 0]
    assert slo_aware(rows, budget([0] * 5, tpot_s=0.045)) == [1, 4, 1, 1, 1]


def test_long_contexts_leave_less_room() -> None:
    rows = [decode(), decode(BATCH), decode(BATCH)]
    assert slo_aware(rows, budget([0, 0, 0], tpot_s=0.04)) == [1, 1, 1]
    assert slo_aware(rows, budget([0, 900, 900], tpot_s=0.04)) == [1, 1, 0]


def test_a_row_s_context_counts_the_token_that_it_adds() -> None:
    """After 99 tokens a row of 100 takes 11 ms."""
    assert slo_aware([decode(), prompt(500)], budget([99, 0], tpot_s=0.100005)) == [1, 89]
    rows = [decode(), decode(BATCH)]
    assert slo_aware(rows, budget([99, 99], tpot_s=0.022005)) == [1, 1]
    assert slo_aware(rows, budget([99, 100], tpot_s=0.022005)) == [1, 0]


def test_no_interactive_row_is_held_up_and_the_oldest_interactive_prompt_does_not_starve() -> None:
    rows = [decode() for _ in range(20)] + [prompt(500), prompt(500), decode(BATCH), prompt(5, BATCH)]
    assert slo_aware(rows, budget([0] * 24)) == [1] * 20 + [LEAST_CHUNK_TOKENS, 0, 0, 0]


def test_without_times_a_step_holds_what_fits_the_objective_at_the_pace_of_the_last_chunk() -> None:
    def taken(rows: list[BatchCandidate], token_s: float) -> list[int]:
        return harvest(rows, budget([0] * len(rows), times=None, token_s=token_s))

    beside_decodes, alone = [decode(), prompt(900), prompt(5)], [prompt(900)]
    assert taken(beside_decodes, 0.0) == [1, 506, 5]
    assert taken(beside_decodes, 0.095 / 512) == [1, 506, 5]
    assert taken(beside_decodes, 0.0005) == [1, 184, 5]
    assert taken(alone, 0.0005) == [512], "no row waits: a third of the time to the first token"
    assert taken(alone, 0.001) == [333]
    assert taken(beside_decodes, 1.0) == [1, LEAST_CHUNK_TOKENS, 5]
    assert taken([prompt(900, BATCH)], 1.0) == [900], "batch work alone has no objective"
    assert taken([decode(), prompt(900, BATCH)], 0.01) == [1, 8], "batch work has no least chunk"


def test_without_a_profile_tokens_are_counted() -> None:
    rows = [prompt(500, BATCH), decode(), prompt(30), decode(BATCH)]
    assert slo_aware(rows, budget([0] * 4, times=None, tokens=40)) == [8, 1, 30, 1]
    assert slo_aware(rows[::3], budget([0] * 2, times=None, tokens=40)) == [500, 1]


CANDIDATES = st.builds(
    lambda tokens, is_decode, request_class: BatchCandidate(1 if is_decode else tokens, is_decode, request_class),
    st.integers(1, 900),
    st.booleans(),
    st.sampled_from(RequestClass),
)


@given(st.lists(st.tuples(CANDIDATES, st.integers(0, 900)), max_size=12), st.floats(0.01, 2.0))
def test_batch_work_never_makes_a_step_miss_an_objective(rows: list[tuple[BatchCandidate, int]], tpot_s: float) -> None:
    candidates, contexts = [row for row, _ in rows], [context for _, context in rows]
    taken = slo_aware(candidates, budget(contexts, tpot_s=tpot_s))
    counts = BatchCounts()
    for each, context, tokens in zip(candidates, contexts, taken, strict=True):
        if tokens and each.is_decode:
            counts.add_decode(context + 1)
        elif tokens:
            counts.add_prefill(tokens, context)
    interactive = [each for each in candidates if each.request_class is not BATCH]
    has_batch = any(tokens and each.request_class is BATCH for each, tokens in zip(candidates, taken, strict=True))
    if interactive and has_batch:
        objective_s = tpot_s if any(each.is_decode for each in interactive) else 1.0
        assert Linear().step_s(counts) <= objective_s


@given(st.lists(CANDIDATES, max_size=12))
def test_batch_work_takes_nothing_from_interactive_rows(candidates: list[BatchCandidate]) -> None:
    taken = slo_aware(candidates, budget([0] * len(candidates)))
    alone = [each for each in candidates if each.request_class is not BATCH]
    mine = [tokens for each, tokens in zip(candidates, taken, strict=True) if each.request_class is not BATCH]
    assert mine == slo_aware(alone, budget([0] * len(alone)))


def test_harvest_keeps_batch_prompts_out_of_steps_with_interactive_ones_and_lets_batch_rows_decode() -> None:
    rows = [prompt(500, BATCH), decode(), prompt(30), decode(BATCH)]
    assert harvest(rows, budget([0] * 4, ttft_s=1.1)) == [0, 1, 30, 1]
    alone = [rows[0], rows[1], rows[3]]
    assert slo_aware(alone, budget([0] * 3)) == [79, 1, 1]
    assert harvest(alone, budget([0] * 3)) == [74, 1, 1]


def risen(tokens: int = 1) -> BatchCandidate:
    return BatchCandidate(tokens, tokens == 1, BATCH, is_risen=True)


def test_starved_rows_decode_in_every_step_and_the_oldest_starved_prompt_gets_a_chunk() -> None:
    rows = [risen(500), risen(500), prompt(900, BATCH), decode(BATCH), risen(), *[decode()] * 10, prompt(500)]
    full = [LEAST_CHUNK_TOKENS, 0, 0, 0, 1, *[1] * 10, LEAST_CHUNK_TOKENS]
    assert slo_aware(rows, budget([0] * len(rows))) == full
    assert harvest(rows, budget([0] * len(rows), tpot_s=0.12, ttft_s=2.0)) == full


def test_starved_rows_come_after_interactive_ones_and_before_other_batch_work() -> None:
    rows = [prompt(900, BATCH), risen(300), prompt(600)]
    assert slo_aware(rows, budget([0] * 3)) == [100, 300, 600]
    assert harvest(rows, budget([0] * 3, ttft_s=3.0)) == [0, LEAST_CHUNK_TOKENS, 600]
    assert harvest([prompt(80, BATCH), risen(50), decode()], budget([0] * 3)) == [34, 50, 1]


def test_in_a_step_of_batch_work_alone_starved_prompts_are_first() -> None:
    rows = [prompt(3000, BATCH), decode(BATCH), risen(1500), risen()]
    assert slo_aware(rows, budget([0] * 4)) == [546, 1, 1500, 1]


def test_harvest_computes_short_prompts_before_long_ones_and_some_of_the_oldest() -> None:
    rows = [prompt(30_000), prompt(300), prompt(80)]
    assert harvest(rows, budget([0] * 3, times=None)) == [132, 300, 80]
    assert harvest(rows, budget([0] * 3, ttft_s=1.21)) == [LEAST_CHUNK_TOKENS, 259, 80]
    assert slo_aware(rows, budget([0] * 3, times=None)) == [512, 0, 0]
    shorter_first = [prompt(300), prompt(30_000), prompt(300)]
    assert harvest(shorter_first, budget([0] * 3, times=None)) == [300, 0, 212]
    assert harvest([prompt(200), prompt(200)], budget([0, 0], ttft_s=0.9)) == [200, 100]


def test_harvest_leaves_the_next_request_time_for_the_running_step_the_queued_one_and_its_own() -> None:
    rows = [prompt(2000), prompt(2000, BATCH)]
    assert harvest(rows, budget([0, 0], ttft_s=1.5)) == [500, 0]
    assert slo_aware(rows, budget([0, 0], ttft_s=1.5)) == [1500, 0]
    assert harvest([decode(), *rows], budget([0] * 3, ttft_s=0.03)) == [1, 84, 0]  # these go by time per token


def test_harvest_divides_a_chunk_among_the_oldest_prompt_and_the_shortest_where_decode_rows_take_all_time() -> None:
    rows, half = [prompt(30_000), *[decode()] * 12, prompt(200), prompt(90)], LEAST_CHUNK_TOKENS // 2
    assert harvest(rows, budget([0] * 15, ttft_s=0.05)) == [half, *[1] * 12, 0, half]
    assert harvest(rows[:13], budget([0] * 13, ttft_s=0.05)) == [LEAST_CHUNK_TOKENS, *[1] * 12]
    rows[-1] = prompt(5)
    assert harvest(rows, budget([0] * 15, ttft_s=0.004)) == [LEAST_CHUNK_TOKENS - 5, *[1] * 12, 0, 5]
    rows[0] = prompt(91)
    rows[-1] = prompt(90)
    assert harvest(rows, budget([0] * 15, ttft_s=0.05)) == [half, *[1] * 12, 0, half]


def test_a_shorter_prompt_that_has_half_a_chunk_anyway_takes_nothing_of_the_oldest_one_s() -> None:
    rows = [prompt(30_000), prompt(300), decode()]
    assert harvest(rows, budget([0] * 3, ttft_s=0.3, tpot_s=0.1125)) == [LEAST_CHUNK_TOKENS, 32, 1]  # 107 ms
    assert harvest(rows, budget([0] * 3, ttft_s=0.3, tpot_s=0.1115)) == [32, 63, 1]


def test_prompts_that_crowd_have_as_much_time_as_the_rows_that_decode() -> None:
    rows, long = [*[decode()] * 12, prompt(90), prompt(200)], prompt(30_000)
    assert harvest(rows, budget([0] * 14)) == [*[1] * 12, 90, 30]  # decode rows take 120 ms
    assert harvest([long, *rows], budget([0] * 15)) == [LEAST_CHUNK_TOKENS, *[1] * 12, 56, 0]
    assert harvest([*rows[:12], long], budget([0] * 13)) == [*[1] * 12, LEAST_CHUNK_TOKENS]


def test_prompts_crowd_where_the_time_beside_decode_rows_would_have_them_late_several_times_over() -> None:
    # Eight rows leave 15 of 95 ms: of four seconds 632 ms.
    assert harvest([*[decode()] * 8, prompt(600)], budget([0] * 9)) == [*[1] * 8, LEAST_CHUNK_TOKENS]
    assert harvest([*[decode()] * 8, prompt(640)], budget([0] * 9)) == [*[1] * 8, 80]
    assert harvest([*[decode()] * 4, *[prompt(900)] * 9], budget([0] * 13))[:5] == [*[1] * 4, LEAST_CHUNK_TOKENS]


class AtOnce:
    """Up to eight prompt tokens cost nothing beside a decode row, each further one a millisecond."""

    def step_s(self, batch: BatchCounts) -> float:
        return 0.01 + 0.001 * max(batch.prefill_tokens - 8, 0)


def test_shorter_prompts_leave_the_oldest_the_time_of_its_chunk() -> None:
    rows = [decode(), prompt(30_000), prompt(300)]
    taken = harvest(rows, budget([0] * 3, times=AtOnce()))  # type: ignore[arg-type]
    assert taken == [1, 32, 93 - 32], "29 were left"


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=8), st.sampled_from([None, Linear()]))
def test_a_step_of_harvest_is_full_and_the_oldest_prompt_has_a_part_of_it(lengths: list[int], times: Linear) -> None:
    taken = harvest([prompt(tokens) for tokens in lengths], budget([0] * len(lengths), times=times))  # type: ignore[arg-type]
    assert taken[0] >= min(LEAST_CHUNK_TOKENS, lengths[0])
    assert sum(taken) == min(sum(lengths), 512 if times is None else 333)


def test_harvest_lets_batch_rows_lengthen_a_step_with_an_interactive_prompt_by_a_share_of_its_objective() -> None:
    rows = [prompt(30), decode(BATCH), decode(BATCH), decode(BATCH)]
    assert harvest(rows, budget([0, 500, 1000, 0], ttft_s=1.6)) == [30, 1, 0, 0]
    assert harvest(rows, budget([0, 500, 0, 0], ttft_s=2.6)) == [30, 1, 1, 0]
    assert harvest(rows, budget([0, 500, 0, 0], ttft_s=0.9)) == [30, 0, 0, 0]
    assert slo_aware(rows, budget([0, 500, 1000, 0], ttft_s=0.9)) == [30, 1, 1, 1]
    assert harvest(rows, budget([0, 500, 0, 0], ttft_s=0.9, times=None)) == [30, 1, 1, 1]


def test_they_are_in_the_table() -> None:
    assert (BATCH_POLICIES["slo_aware"], BATCH_POLICIES["harvest"]) == (slo_aware, harvest)
