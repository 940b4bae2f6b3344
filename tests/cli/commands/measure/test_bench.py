"""`dunlin bench`: the path's figures are measured on streams that are whole; options that cannot be are refused."""

import json

import pytest

from cli.commands.measure.path_cost import AnsweringEngine, measure
from cli.main import main
from dunlin.messages.engine import Step
from dunlin.messages.types import i8, i32, i64


def test_the_path_carries_every_token_and_its_cost_is_positive() -> None:
    one, four = measure((1, 4), 200)
    assert (one.running, one.tokens) == (1, 200)
    assert (four.running, four.tokens) == (4, 4 * 50)
    assert all(cost.path_us_per_token > cost.engine_us_per_token > 0 for cost in (one, four))
    assert all(cost.first_token_ms > 0 and cost.steps_per_s > 0 for cost in (one, four))


def test_the_engine_answers_the_rows_that_sample() -> None:
    column = i64([4, 5, 6])
    done = AnsweringEngine().answer(Step(9, column, column, column, i8([1, 0, 1]), i32(), i64(), i64()))
    assert (done.step, list(done.sequence), len(done.token), len(done.finish)) == (9, [4, 6], 2, 2)


def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "path", "--running", "2", "--tokens", "100", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["running"] == 2


@pytest.mark.parametrize("flags", [["path", "--running", "0"], ["path", "--running", "x"]])
def test_what_cannot_be_is_refused(flags: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["bench", *flags])
    assert stopped.value.code == 2
