"""The corpus takes in what covers something new, and prefers plans that brought much and were changed little."""

from collections import Counter
from random import Random

from simulator.campaign.search.corpus import PlanCorpus
from simulator.campaign.search.dense_plans import dense_plan


def test_only_what_covers_something_new_comes_in() -> None:
    corpus, (one, two, three) = PlanCorpus(), [dense_plan(seed) for seed in range(3)]
    assert corpus.admit(one, {1, 2})
    assert not corpus.admit(two, {2})
    assert corpus.admit(three, {2, 3})
    assert [(entry.plan, entry.novelty) for entry in corpus.entries] == [(one, 2), (three, 1)]
    assert corpus.features == {1, 2, 3}


def test_each_choice_has_the_next_number_and_makes_the_entry_less_likely() -> None:
    corpus = PlanCorpus()
    corpus.admit(dense_plan(0), set(range(90)))
    corpus.admit(dense_plan(1), {100})
    draw = Random(1)
    chosen = [corpus.choose(draw) for _ in range(200)]
    numbers = [number for plan, number in chosen if plan.name == "0"]
    assert numbers == list(range(1, len(numbers) + 1))
    times = Counter(plan.name for plan, _ in chosen)
    assert times["0"] > times["1"] > 5


def test_the_same_runs_and_draws_choose_the_same() -> None:
    def choices() -> list[tuple[str, int]]:
        corpus, draw = PlanCorpus(), Random(7)
        for seed in range(6):
            corpus.admit(dense_plan(seed), set(range(seed, 4 * seed + 1)))
        return [(plan.name, number) for plan, number in (corpus.choose(draw) for _ in range(30))]

    assert choices() == choices()
