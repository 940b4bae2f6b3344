"""What an answer took: a prompt counts once however many choices it has."""

from dunlin.messages.types import i32
from services.dispatcher.openai_usage import CallUsage
from services.dispatcher.rendering import Piece


def counted(prompt: int, completion: int, cached: int) -> dict[str, object]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def test_each_choice_with_its_prompt_and_all_together() -> None:
    usage = CallUsage([10, 20], choices=2)
    assert usage.total() == counted(30, 0, 0)
    usage.count(0, Piece("", tokens=i32([1, 2]), cached_tokens=8))
    usage.count(1, Piece("", tokens=i32([1]), cached_tokens=16))
    usage.count(3, Piece("", tokens=i32([1, 2, 3]), cached_tokens=4))
    usage.count(3, Piece("", tokens=i32([4])))
    assert usage.so_far(0) == counted(10, 2, 8)
    assert usage.so_far(1) == counted(10, 1, 16)
    assert usage.so_far(3) == counted(20, 4, 4)
    assert usage.total() == counted(30, 7, 8)
