"""A new attempt starts from what earlier ones left in the host tier: as far as it fits, is whole, and is answered."""

from typing import Any

import pytest

from dunlin.messages.dispatch import Continued, PromptScored
from dunlin.messages.engine import Step, Transfer
from dunlin.messages.pool import FindRegions, ReleaseRegion
from dunlin.messages.types import SamplingParams, TransferKind
from tests.services.instance.bench import Bench, make_place

TOKENS = [1, *range(79)]


def make_bench(**settings: Any) -> Bench:
    return Bench(**{"tier_bytes": 1 << 16, "engine": {"slots": 256}, **settings})


def again(bench: Bench, **overrides: Any) -> Any:
    return bench.place(1, **{"known": TOKENS, "prompt_tokens": 60, "max_tokens": 40, "attempt": 2, **overrides})


def place_of(**overrides: Any) -> Any:
    return make_place(1, **{"known": TOKENS, "prompt_tokens": 60, "attempt": 2, **overrides})


def computed(bench: Bench) -> int:
    return sum(sum(step.stop) - sum(step.start) for step in bench.sent(Step))


def finish(bench: Bench, attempt: Any) -> None:
    bench.run_until_quiet()
    bench.check_empty()
    assert attempt.tokens == attempt.expected


def test_only_the_rest_is_computed_again() -> None:
    bench = make_bench()
    bench.leave_behind(place_of(), (0, 32), (32, 64))
    attempt = again(bench)
    finish(bench, attempt)
    report = bench.core.report()
    assert (report.claimed_tokens_total, report.restored_regions_total) == (64, 2)
    assert computed(bench) == len(TOKENS) - 64 + 19, "the rest of the known tokens, and each new one but the last"
    (continued,) = bench.dispatcher.of(Continued)
    assert (continued.restored_tokens, continued.recomputed_tokens) == (64, 15)


def test_all_of_it_may_be_there_and_one_token_is_still_computed() -> None:
    bench = make_bench()
    bench.leave_behind(place_of(), (0, 80))
    attempt = again(bench)
    finish(bench, attempt)
    assert computed(bench) == 1 + 19


def test_what_is_of_other_tokens_or_leaves_a_gap_is_let_go() -> None:
    bench = make_bench()
    other = [*TOKENS[:40], *range(900, 940)]
    bench.leave_behind(place_of(), (0, 32))
    bench.leave_behind(place_of(), (32, 64), tokens=other)
    bench.leave_behind(place_of(), (48, 64))
    attempt = again(bench)
    finish(bench, attempt)
    assert bench.core.report().claimed_tokens_total == 32
    assert len(bench.sent(ReleaseRegion)) >= 2


def test_where_two_attempts_left_some_the_longer_region_counts() -> None:
    """As where a node heard of the first one's regions only when the second had begun without them."""
    bench = make_bench()
    bench.leave_behind(place_of(), (0, 32))
    bench.leave_behind(place_of(), (0, 48), (48, 64))
    attempt = again(bench)
    finish(bench, attempt)
    assert bench.core.report().claimed_tokens_total == 64
    assert len(bench.sent(ReleaseRegion)) >= 1


def test_some_layers_alone_are_let_go() -> None:
    bench = make_bench()
    (host,) = bench.leave_behind(place_of(), (0, 32), layers=(0, 1))
    attempt = again(bench)
    finish(bench, attempt)
    assert bench.core.report().claimed_tokens_total == 0
    assert bench.sent(ReleaseRegion)[0].handle == host.handle


def test_regions_that_have_all_layers_together_are_restored_together() -> None:
    bench = make_bench()
    for layers in ((1, 2), (0, 1)):
        bench.leave_behind(place_of(), (0, 32), (32, 64), layers=layers)
    attempt = again(bench)
    finish(bench, attempt)
    report = bench.core.report()
    assert (report.claimed_tokens_total, report.restored_regions_total) == (64, 4)
    assert computed(bench) == len(TOKENS) - 64 + 19


@pytest.mark.parametrize("damaged", [0, 1])
def test_a_span_with_a_damaged_layer_is_computed_again(damaged: int) -> None:
    bench = make_bench()
    first = bench.leave_behind(place_of(), (0, 32), (32, 64), layers=(0, 1))
    second = bench.leave_behind(place_of(), (0, 32), (32, 64), layers=(1, 2))
    bench.tier.corrupt((first, second)[damaged][1].offset_bytes)
    attempt = again(bench)
    finish(bench, attempt)
    assert bench.core.report().claimed_tokens_total == 32
    assert computed(bench) == len(TOKENS) - 32 + 19


def test_another_tenants_are_not_taken() -> None:
    bench = make_bench()
    bench.leave_behind(place_of(tenant="b"), (0, 32))
    attempt = again(bench, tenant="a")
    bench.run_until_quiet()
    assert attempt.tokens == attempt.expected
    assert bench.core.report().claimed_tokens_total == 0
    assert bench.kvstore is not None
    assert len(bench.kvstore.catalog) == 1, "a guessed id takes nothing away from its tenant"


def test_a_damaged_region_cuts_there() -> None:
    bench = make_bench()
    hosts = bench.leave_behind(place_of(), (0, 32), (32, 48), (48, 64))
    bench.tier.corrupt(hosts[1].offset_bytes)
    finish(bench, again(bench))
    report = bench.core.report()
    assert (report.claimed_tokens_total, report.corrupt_regions_total) == (32, 1)


def test_regions_that_changed_places_are_damaged_ones() -> None:
    """Two whole regions of the same size, with their checksums: only what was asked for tells them apart."""
    bench = make_bench()
    first, second = bench.leave_behind(place_of(), (0, 32), (32, 64))
    contents = bench.tier.contents
    one, other = first.offset_bytes, second.offset_bytes
    contents[one], contents[other] = contents[other], contents[one]
    finish(bench, again(bench))
    assert bench.core.report().corrupt_regions_total == 1


def test_regions_that_cannot_be_there_are_not_asked_for() -> None:
    bench = make_bench()
    finish(bench, again(bench, attempt=1, prompt_tokens=80))
    assert bench.sent(FindRegions) == []


def test_one_whose_room_is_lost_asks_too() -> None:
    bench = make_bench()
    bench.leave_behind(place_of(), (0, 48))
    finish(bench, again(bench, handle=3))
    assert bench.core.report().claimed_tokens_total == 48


def test_an_adopted_request_asks_though_its_attempt_is_the_first_here() -> None:
    bench = make_bench()
    bench.leave_behind(place_of(key="k"), (0, 48))
    finish(bench, again(bench, attempt=1, key="k"))
    assert bench.core.report().claimed_tokens_total == 48


def test_without_an_answer_it_starts_anyway_and_takes_nothing_late() -> None:
    bench = make_bench(host_tier__answer_timeout_s=0.5)
    bench.leave_behind(place_of(), (0, 48))
    bench.world.pause(bench.kvstore_address)
    attempt = again(bench)
    bench.run(0.4)
    assert bench.sent(Step) == []
    bench.run(0.3)
    assert bench.sent(Step) != []
    bench.world.resume(bench.kvstore_address)
    finish(bench, attempt)
    assert bench.core.report().claimed_tokens_total == 0


def test_others_do_not_wait_for_who_waits_for_the_kvstore() -> None:
    bench = make_bench(host_tier__answer_timeout_s=2.0)
    bench.world.pause(bench.kvstore_address)
    again(bench)
    other = bench.place(2, tokens=10, max_tokens=5)
    bench.run(0.3)
    assert other.tokens == other.expected
    bench.world.resume(bench.kvstore_address)


def test_one_that_is_cancelled_meanwhile_gives_everything_back() -> None:
    bench = make_bench()
    bench.leave_behind(place_of(), (0, 48))
    bench.world.pause(bench.kvstore_address)
    attempt = again(bench)
    bench.run(0.01)
    bench.cancel(attempt)
    bench.run(0.01)
    bench.world.resume(bench.kvstore_address)
    bench.run_until_quiet()
    bench.check_empty()


def test_a_kvstore_that_dies_meanwhile_is_not_waited_for() -> None:
    bench = make_bench()
    bench.world.pause(bench.kvstore_address)
    attempt = again(bench)
    bench.run(0.01)
    bench.kill_kvstore()
    finish(bench, attempt)


def test_its_own_earlier_attempt_that_still_ends_here_does_no_harm() -> None:
    bench = make_bench(checkpoint__min_tokens=16, checkpoint__engine_share=0.5)
    first = bench.place(1, tokens=40, max_tokens=60)
    bench.run(0.3)
    second = bench.again(first)
    finish(bench, second)
    assert bench.kvstore is not None
    assert bench.kvstore.stale_total <= bench.kvstore.report().claimed_total


def test_the_fields_of_the_question() -> None:
    bench = make_bench()
    again(bench, key="req-1-1")
    bench.run(0.05)
    (find,) = bench.sent(FindRegions)
    assert (find.key, find.attempt, find.request) == ("req-1-1", 2, 1)
    assert (find.weights_digest, find.kv_dtype) == ("fake", "float32")
    assert find.why is not None


def test_what_is_kept_is_copied_back_beside_the_steps_that_are_under_way() -> None:
    bench = make_bench(engine={"slots": 4096, "token_s": 0.01}, scheduler__budget_tokens=128)
    bench.place(7, tokens=600, max_tokens=2)
    bench.run(0.3)
    sent = len(bench.sent(Step))
    bench.leave_behind(place_of(), (0, 32), (32, 64))
    again(bench)
    bench.run(0.05)
    moves = [move for move in bench.sent(Transfer) if move.kind is TransferKind.HOST_TO_SLAB]
    assert ([move.region.stop for move in moves], len(bench.sent(Step))) == ([32, 64], sent), "no step ended meanwhile"


def test_an_interrupted_answer_comes_before_prompts_without_a_token() -> None:
    bench = make_bench(engine={"slots": 4096}, scheduler__budget_tokens=64)
    long = [bench.place(request, tokens=600, max_tokens=8) for request in (7, 8)]
    bench.run(0.03)
    attempt = again(bench)
    assert bench.world.run(lambda: len(attempt.tokens) > 0, for_s=2)
    assert not any(one.tokens for one in long), "both are older, and have not begun to answer"
    finish(bench, attempt)
    for one in long:
        assert one.tokens == one.expected


@pytest.mark.parametrize(("scored", "restored"), [(0, 0), (31, 0), (32, 32), (58, 32), (59, 64)])
def test_of_a_prompt_whose_log_probabilities_are_wanted_only_what_was_scored(scored: int, restored: int) -> None:
    """A checkpoint may have outlived the message with them."""
    bench = make_bench()
    bench.leave_behind(place_of(), (0, 32), (32, 64))
    attempt = again(bench, sampling=SamplingParams(seed=1, prompt_logprobs=0), scored=scored)
    finish(bench, attempt)
    assert bench.core.report().claimed_tokens_total == restored
    found = [each for said in bench.dispatcher.of(PromptScored) for each in range(len(said.logprob))]
    assert len(found) == 59 - scored
