"""Jobs out of arrivals: lengths that fit, ids in range, a seed that repeats."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dunlin.workload.traffic.prompts import answer_bound, clip_lengths, iter_jobs, make_jobs
from dunlin.workload.traffic.trace import Arrival

LENGTH = st.integers(1, 10_000)


@given(LENGTH, LENGTH, st.integers(2, 10_000))
def test_clipped_lengths_fit_and_are_as_long_as_they_can_be(inputs: int, outputs: int, room: int) -> None:
    got = clip_lengths(inputs, outputs, room)
    assert 1 <= got[0] <= inputs
    assert 1 <= got[1] <= outputs
    assert sum(got) == min(inputs + outputs, room)


@pytest.mark.parametrize(
    ("given_lengths", "got"),
    [((10, 5), (10, 5)), ((90, 10), (90, 10)), ((91, 10), (90, 10)), ((10, 500), (10, 90)), ((900, 500), (50, 50))],
)
def test_the_longer_side_gives_way(given_lengths: tuple[int, int], got: tuple[int, int]) -> None:
    assert clip_lengths(*given_lengths, 100) == got


def test_jobs_follow_their_arrivals() -> None:
    jobs = make_jobs([Arrival(1.0, 4, 2), Arrival(3.0, 400, 2)], max_positions=100, vocabulary=7, seed=1, speed=2.0)
    assert [(job.at_s, len(job.prompt), job.max_tokens, job.clipped) for job in jobs] == [
        (0.5, 4, 2, False),
        (1.5, 98, 2, True),
    ]
    assert set(jobs[1].prompt) <= set(range(7))


def test_jobs_are_greedy_or_each_has_a_seed_of_its_own() -> None:
    arrivals = [Arrival(1.0, 4, 2), Arrival(3.0, 5, 2)]
    greedy, sampled = (make_jobs(arrivals, 100, 7, 1, sampled=sampled) for sampled in (False, True))
    assert [job.seed for job in greedy] == [None, None]
    assert [job.seed for job in sampled] == [0, 1]
    assert [job.prompt for job in greedy] == [job.prompt for job in sampled]


def test_a_seed_fixes_the_prompts() -> None:
    def prompts(seed: int) -> list[list[int]]:
        return [list(job.prompt) for job in make_jobs([Arrival(0, 50, 1)] * 3, 100, 1000, seed)]

    assert prompts(1) == prompts(1)
    assert prompts(1) != prompts(2)
    assert prompts(1)[0] != prompts(1)[1]


@pytest.mark.parametrize("bad", [{"speed": 0.0}, {"speed": float("nan")}, {"max_positions": 1}, {"vocabulary": 0}])
def test_senseless_parameters_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"speed|fits"):
        make_jobs([], **{"max_positions": 10, "vocabulary": 10, "seed": 1, **bad})  # type: ignore[arg-type]


def test_prompts_share_the_beginnings_that_their_arrivals_share() -> None:
    arrivals = [
        Arrival(0, 100, 1, blocks=(1, 2), block_tokens=64),
        Arrival(0, 120, 1, blocks=(1, 3), block_tokens=64),
        Arrival(0, 40, 1, blocks=(1,), block_tokens=64),
        Arrival(0, 100, 1, blocks=(1, 2), block_tokens=64),
        Arrival(0, 200, 1, blocks=(1, 2), block_tokens=64),
    ]
    first, second, short, again, longer = (list(job.prompt) for job in make_jobs(arrivals, 1000, 50_000, 1))
    assert [len(one) for one in (first, second, short, again, longer)] == [100, 120, 40, 100, 200]
    assert first[:64] == second[:64]
    assert first[64:80] != second[64:80]
    assert short == first[:40]
    assert again == first
    assert longer[:100] == first
    assert len(set(longer[128:])) > 60  # its own


def test_a_clipped_prompt_keeps_its_beginning() -> None:
    arrivals = [Arrival(0, 900, 1, blocks=(7,), block_tokens=512), Arrival(0, 600, 1, blocks=(7,), block_tokens=512)]
    clipped, whole = make_jobs(arrivals, 100, 50_000, 1), make_jobs(arrivals, 10_000, 50_000, 1)
    assert list(clipped[0].prompt) == list(whole[1].prompt)[:99]


def test_no_two_texts_begin_alike() -> None:
    jobs = make_jobs([Arrival(0, 400, 1)] * 300, 1000, 50_000, 1)
    assert len({tuple(job.prompt[:16]) for job in jobs}) == 300


def test_a_class_goes_along() -> None:
    assert make_jobs([Arrival(0, 4, 1, "chat")], 10, 10, 1)[0].label == "chat"


def test_a_bound_is_the_same_for_all_and_leaves_room_for_the_prompt() -> None:
    arrivals = [Arrival(0.0, 10, 3), Arrival(1.0, 10, 33), Arrival(2.0, 80, 5), Arrival(3.0, 96, 4)]
    assert answer_bound(arrivals) == 64
    assert answer_bound([]) == answer_bound([Arrival(0.0, 1, 1)]) == 1
    bounds = [job.bound for job in iter_jobs(arrivals, 100, 50, 0, bound=64)]
    assert bounds == [64, 64, 20, 4]
    assert [job.bound for job in iter_jobs(arrivals, 100, 50, 0)] == [None] * 4
