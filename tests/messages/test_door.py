"""Log-probabilities of a prompt: appended, cut, and by token."""

from dunlin.messages.door import PromptLogprobs
from dunlin.messages.types import f32, i32


def made(start: int, stop: int, best: int = 2) -> PromptLogprobs:
    tops = [10 * token + place for token in range(start, stop) for place in range(best)]
    return PromptLogprobs(best, f32(range(start, stop)), i32(range(start, stop)), i32(tops), f32(tops))


def test_parts_put_together_are_the_whole() -> None:
    for best in (0, 2):
        whole = PromptLogprobs(best)
        for start, stop in ((0, 3), (3, 3), (3, 7)):
            whole.extend(made(0, 7, best).part(start, stop))
        assert whole == made(0, 7, best)
        assert (len(whole), len(whole.part(5)), len(whole.part(9))) == (7, 2, 0)


def test_the_likeliest_of_each_token_are_at_most_so_many() -> None:
    assert list(made(1, 3).tops(5)) == [[(10, 10.0), (11, 11.0)], [(20, 20.0), (21, 21.0)]]
    assert list(made(1, 3).tops(1)) == [[(10, 10.0)], [(20, 20.0)]]
    assert list(made(1, 3).tops(0)) == list(made(1, 3, 0).tops(4)) == [[], []]
