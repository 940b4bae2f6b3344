"""The check of I10 finds each way in which results can be broken."""

import json

import pytest

from services.dispatcher.batches.results_check import broken_results

INPUT = [b'{"custom_id": "a"}\n', b"\n", b'{"custom_id": "b"}\n', b"no json\n"]


def line(custom_id: str | None) -> bytes:
    return json.dumps({"custom_id": custom_id, "response": None}).encode() + b"\n"


def test_whole_results_please() -> None:
    assert broken_results(INPUT, [line("a")], [line("b"), line(None)]) == []


@pytest.mark.parametrize(
    ("output", "errors", "complaint"),
    [
        ([line("a"), line("a")], [line("b"), line(None)], "'a' has 2 result lines"),
        ([line("a")], [line("a"), line(None)], "'b' has no result line"),
        ([line("a")], [line("b")], "3 input lines, 2 result lines"),
        ([line("a"), line("c")], [line("b"), line(None)], "'c' is no custom_id of the input"),
        ([line("a")[:-5]], [line("b"), line(None)], "output line 1 is not whole"),
        ([line("a")[:-1]], [line("b"), line(None)], "output line 1 is not whole"),
    ],
)
def test_broken_results_are_found(output: list[bytes], errors: list[bytes], complaint: str) -> None:
    assert complaint in broken_results(INPUT, output, errors)
