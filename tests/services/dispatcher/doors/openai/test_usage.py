"""What an answer took: a prompt counts once however many choices it has."""

from dunlin.messages.types import i32
from services.dispatcher.doors.generation.output import OutputPiece
from services.dispatcher.doors.openai.usage import CallUsage


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
    usage.add(0, OutputPiece("", tokens=i32([1, 2]), cached_tokens=8))
    usage.add(1, OutputPiece("", tokens=i32([1]), cached_tokens=16))
    usage.add(3, OutputPiece("", tokens=i32([1, 2, 3]), cached_tokens=4))
    usage.add(3, OutputPiece("", tokens=i32([4])))
    assert usage.of_choice(0) == counted(10, 2, 8)
    assert usage.of_choice(1) == counted(10, 1, 16)
    assert usage.of_choice(3) == counted(20, 4, 4)
    assert usage.total() == counted(30, 7, 8)
