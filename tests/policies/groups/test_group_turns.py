"""Which prompts a group's step computes, and how much of them."""

from dataclasses import dataclass

from dunlin.cost.models import BatchCounts
from dunlin.policies.groups.group_turns import (
    LEAST_CHUNK_TOKENS,
    PromptTurn,
    chunk_within,
    response_order,
)


@dataclass(frozen=True)
class LinearTimes:
    """Steps of `fixed_s`, `token_s` a token and `product_s` a product of a token and a token before it."""

    fixed_s: float = 0.005
    token_s: float = 40e-6
    product_s: float = 1e-9

    def step_s(self, batch: BatchCounts) -> float:
        products = batch.prefix_products + batch.self_products
        return self.fixed_s + self.token_s * batch.prefill_tokens + self.product_s * products


class TestResponseOrder:
    def test_a_short_prompt_passes_a_long_one_after_a_moment(self) -> None:
        long = PromptTurn(400_000, 10.0)
        assert response_order([long, PromptTurn(8_000, 0.1)]) == [0, 1]
        assert response_order([long, PromptTurn(8_000, 0.3)]) == [1, 0]

    def test_what_is_left_counts_so_that_one_nearly_done_is_ended(self) -> None:
        assert response_order([PromptTurn(9_000, 1.0), PromptTurn(1_000, 0.5)]) == [1, 0]

    def test_a_long_prompt_is_passed_by_none_that_comes_much_later(self) -> None:
        assert response_order([PromptTurn(100, 0.0), PromptTurn(400_000, 60.0)]) == [1, 0]

    def test_the_rank_comes_first_and_ties_go_to_the_first(self) -> None:
        late = PromptTurn(100, 9.0, (True, False))
        assert response_order([late, PromptTurn(100, 0.0, (False, False)), PromptTurn(100, 0.0, (False, False))]) == [
            1,
            2,
            0,
        ]


class TestChunkWithin:
    def test_without_times_it_is_the_most(self) -> None:
        assert chunk_within(None, 500_000, 0.05, 2048) == 2048

    def test_the_step_takes_about_as_long_as_it_may(self) -> None:
        times = LinearTimes()
        for prefix in (10_000, 50_000, 100_000):
            tokens = chunk_within(times, prefix, 0.15, 4096)
            counts = BatchCounts()
            counts.add_prefill(tokens, prefix)
            assert LEAST_CHUNK_TOKENS < tokens < 4096
            assert 0.1 < times.step_s(counts) < 0.16

    def test_a_step_that_takes_exactly_as_long_as_it_may_has_the_most(self) -> None:
        for prefix in range(0, 20_000, 100):
            counts = BatchCounts()
            counts.add_prefill(2048, prefix)
            assert chunk_within(LinearTimes(), prefix, LinearTimes().step_s(counts), 2048) == 2048

    def test_a_short_prefix_leaves_the_most(self) -> None:
        assert chunk_within(LinearTimes(), 0, 0.5, 2048) == 2048

    def test_the_least_is_computed_however_long_it_takes(self) -> None:
        assert chunk_within(LinearTimes(), 400_000, 0.001, 2048) == 512
        assert chunk_within(LinearTimes(), 400_000, 0.001, 16) == 16

    def test_times_that_say_nothing_bound_nothing(self) -> None:
        assert chunk_within(LinearTimes(0.0, 0.0, 0.0), 1_000, 0.001, 2048) == 2048
