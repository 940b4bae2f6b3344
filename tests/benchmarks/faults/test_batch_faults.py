"""What a batch job under faults is checked for, from made-up results."""

import json

from benchmarks.faults.batch_faults import PROMPTS, BatchFaultsPlan, different_answers, job_lines


def answer(number: int, text: str) -> bytes:
    choices = [{"text": text}]
    return json.dumps({"custom_id": str(number), "response": {"body": {"choices": choices}}}).encode()


def test_lines_are_named_by_number_and_prompts_come_again() -> None:
    lines = list(job_lines(PROMPTS + 2, 500, seed=1))
    assert [line["custom_id"] for line in lines[:2]] == ["0", "1"]
    assert lines[PROMPTS]["body"] == lines[0]["body"] != lines[1]["body"]
    assert all(3 <= len(line["body"]["prompt"]) <= 24 for line in lines)
    assert list(job_lines(3, 500, seed=1)) == lines[:3]


def test_an_answer_that_differs_from_another_of_its_prompt_is_told() -> None:
    alike = [answer(0, "a"), answer(1, "b"), answer(PROMPTS, "a")]
    assert different_answers(alike) == []
    (complaint,) = different_answers([*alike, answer(PROMPTS + 1, "c")])
    assert complaint == f"line {PROMPTS + 1} says 'c', another of its prompt 'b'"


def test_the_cluster_has_two_dispatchers_and_is_deterministic() -> None:
    flags = BatchFaultsPlan(instances=3).flags()
    assert flags[:2] == ("--instances", "3")
    assert {"--deterministic", "unified"} <= set(flags)
