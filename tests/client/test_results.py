"""The whole answer: events are joined, and each token keeps its likeliest tokens."""

from dunlin.client.results import Generation, GenerationBuilder, top_logprobs_of
from dunlin.messages.public import GenerateEvent
from dunlin.messages.types import FinishReason, f32, i32


def test_events_are_joined() -> None:
    builder = GenerationBuilder()
    for event in (
        GenerateEvent("r", prompt_tokens=3, seed=1),
        GenerateEvent("r", "ab", i32((1, 2)), f32((-0.5, -1.0)), i32((1, 0)), i32((1,)), f32((-0.5,)), prompt_tokens=3),
        GenerateEvent("r", "c", i32((3,)), finish=FinishReason.STOP, prompt_tokens=3, cached_tokens=2),
    ):
        builder.add(event)
    tops = (((1, -0.5),), ())
    assert builder.build() == Generation("r", "abc", (1, 2, 3), FinishReason.STOP, 3, (-0.5, -1.0), tops, 2)


def test_log_probabilities_of_the_prompt_are_joined() -> None:
    builder = GenerationBuilder()
    for scores in (
        GenerateEvent(
            "r",
            prompt_logprobs=f32((-1.0, -2.0)),
            prompt_ranks=i32((4, 5)),
            prompt_top_token=i32((6, 7)),
            prompt_top_logprob=f32((-0.5, -0.25)),
        ),
        GenerateEvent("r", prompt_logprobs=f32((-3.0,)), prompt_ranks=i32((1,))),
        GenerateEvent("r", "a", i32((1,))),
    ):
        builder.add(scores)
    answer = builder.build()
    assert (answer.prompt_logprobs, answer.prompt_ranks) == ((-1.0, -2.0, -3.0), (4, 5, 1))
    assert answer.prompt_top_logprobs == (((6, -0.5),), ((7, -0.25),), ())


def test_tokens_without_log_probabilities_have_no_likeliest_tokens() -> None:
    assert list(top_logprobs_of(GenerateEvent("r", "a", i32((1,))))) == []
    two = GenerateEvent("r", "a", i32((1,)), f32((-1.0,)), i32((2,)), i32((1, 9)), f32((-1.0, -2.0)))
    assert list(top_logprobs_of(two)) == [((1, -1.0), (9, -2.0))]
