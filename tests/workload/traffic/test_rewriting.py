"""Traces rewritten as papers did: which requests change, and which never do."""

from pathlib import Path

import pytest

from dunlin.workload.traffic.rewriting import DOCUMENT_TOKENS, lengthen_longest, read_documents, sample_over
from dunlin.workload.traffic.spec_grammar import WorkloadError
from dunlin.workload.traffic.trace import Arrival, TraceError
from dunlin.workload.traffic.workload_spec import read_workload

ROWS = [Arrival(float(place), 10 * place + 1, 5, blocks=(place,)) for place in range(100)]


def test_the_longest_become_long_and_all_have_a_class() -> None:
    made = lengthen_longest(ROWS, 0.05, 1000, 2000, seed=1)
    assert [one.label for one in made] == ["short"] * 95 + ["long"] * 5
    assert all(1000 <= one.input_tokens <= 2000 and one.blocks == () for one in made[95:])
    assert [(one.at_s, one.input_tokens, one.blocks) for one in made[:95]] == [
        (one.at_s, one.input_tokens, one.blocks) for one in ROWS[:95]
    ]
    assert [one.output_tokens for one in made] == [5] * 100
    assert made == lengthen_longest(ROWS, 0.05, 1000, 2000, seed=1) != lengthen_longest(ROWS, 0.05, 1000, 2000, seed=2)


def test_of_equals_exactly_the_share_is_long() -> None:
    same = [Arrival(0.0, 7, 1)] * 40
    assert sum(one.label == "long" for one in lengthen_longest(same, 0.25, 9, 9, 0)) == 10


def test_a_sample_has_its_size_and_its_times_are_scaled() -> None:
    made = sample_over(ROWS, 0.5, 60.0, seed=3)
    assert len(made) == 30
    assert len({one.blocks for one in made}) == 30, "none is drawn twice"
    assert all(one.at_s == pytest.approx(one.blocks[0] * 60 / 99) and one.at_s < 60 for one in made)
    assert [one.at_s for one in made] == sorted(one.at_s for one in made)
    with pytest.raises(TraceError, match="needs 600 requests of 100"):
        sample_over(ROWS, 10, 60.0, 0)


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "q.csv"
    path.write_text("input_tokens,output_tokens,task,document\n5564,1,a,0\n5569,2,a,0\n900,3,b,0\n")
    return path


def test_questions_about_one_document_share_it(questions: Path) -> None:
    first, second, alone = (one.arrival(1.0) for one in read_documents(questions))
    assert first.blocks == second.blocks != ()
    assert len(first.blocks) == (5564 - 128) // DOCUMENT_TOKENS
    assert alone.blocks == (), "nothing is shared by a single question"
    assert (first.input_tokens, second.input_tokens, alone.input_tokens) == (5564, 5569, 900)
    assert len(first.blocks) * first.block_tokens < first.input_tokens


def test_workloads_name_them(questions: Path, tmp_path: Path) -> None:
    made = read_workload(f"poisson:rate=5,requests=50,documents={questions}")
    assert {one.input_tokens for one in made} == {5564, 5569, 900}
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n" + "".join(f"{i},{10 + i},1\n" for i in range(100)))
    made = read_workload(f"trace:{trace},rewrite=long(0.1,5000,6000)")
    assert sum(one.label == "long" for one in made) == 10
    made = read_workload(f"trace:{trace},sample=2,over=20")
    assert (len(made), max(one.at_s for one in made) <= 20) == (40, True)
    for wrong in ("rewrite=short(1)", "rewrite=long(2)", "rewrite=long(0.1,9,5)", "sample=2"):
        with pytest.raises(WorkloadError):
            read_workload(f"trace:{trace},{wrong}")


def test_what_is_no_list_of_questions_is_said(tmp_path: Path) -> None:
    for text in ("input_tokens,output_tokens\n1,1\n", "input_tokens,output_tokens,task,document\n", ""):
        (tmp_path / "x.csv").write_text(text)
        with pytest.raises(TraceError, match="question"):
            read_documents(tmp_path / "x.csv")
