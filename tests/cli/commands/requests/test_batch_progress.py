"""The bar of a batch job: what is done, how fast, and how long it takes; only a terminal is written over."""

import io

from cli.commands.requests.batch_progress import BatchProgress, FinishRate, bar, show
from dunlin.messages.batches import BatchJob, BatchLineError


def job(
    completed: int = 0, failed: int = 0, total: int = 100, status: str = "in_progress", **others: object
) -> BatchJob:
    values = dict.fromkeys(("window_s", "input_tokens", "cached_tokens", "output_tokens"), 0)
    times = dict.fromkeys(("created_s", "started_s", "ended_s", "expires_s", "output_bytes", "error_bytes"), 0)
    names = {"batch": "batch_1", "endpoint": "/v1/completions", "input_file": "file-1", "bad_lines": 0}
    counts = {"completed": completed, "failed": failed, "total": total, "status": status}
    return BatchJob(**{**values, **times, **names, **counts, **others})  # type: ignore[arg-type]


def test_the_rate_is_that_of_the_last_minute() -> None:
    rate = FinishRate()
    assert rate.per_s == 0
    for now_s, finished in ((0, 0), (10, 1000), (70, 1060), (130, 1120)):
        rate.add(now_s, finished)
    assert rate.per_s == 1.0


def test_the_rest_takes_what_the_rate_says() -> None:
    assert bar(job(total=0, status="validating"), 0) == "validating: the lines are read"
    assert bar(job(), 0).endswith("0/100")
    assert bar(job(40, 10), 0.01).endswith("50/100, 10 failed, 0.0 lines/s, 1 h 23 min left")
    assert bar(job(50), 2.0).endswith("50/100, 2.0 lines/s, 25 s left")
    assert bar(job(40), 0.5).endswith("2 min 0 s left")
    assert bar(job(100, status="completed"), 2.0) == f"completed [{'#' * 30}] 100/100"
    assert bar(job(50), 1).count("#") == 15


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_line_and_a_file_a_line_for_each_change() -> None:
    times = iter(range(100))
    terminal, file = Terminal(), io.StringIO()
    for out in (terminal, file):
        progress = BatchProgress(out, lambda: float(next(times)))
        for completed in (0, 0, 50):
            progress.update(job(completed))
        progress.end()
    assert terminal.getvalue().count("\n") == 1
    assert terminal.getvalue().count("\r") == 3
    assert len(file.getvalue().splitlines()) == 2


def test_a_job_tells_its_bad_lines() -> None:
    errors = (BatchLineError(7, "invalid_json_line", "what"), BatchLineError(0, "empty_file", "no line"))
    text = show(job(1, 2, 3, "completed", errors=errors, bad_lines=5))
    assert text.splitlines()[0] == "batch_1: completed, 3 lines, 1 answered, 2 failed"
    assert text.splitlines()[2:] == [
        "line 7: invalid_json_line: what",
        "no line",
        "and 3 more lines that are no request",
    ]
