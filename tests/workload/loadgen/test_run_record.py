"""The record of a run: what was written is read, what is none is refused."""

from pathlib import Path

import pytest

from dunlin.workload.loadgen.run_record import RecordedRun, read_run, write_run
from dunlin.workload.loadgen.stats import RequestRecord
from dunlin.workload.traffic.trace import Arrival, TraceError

RUN = RecordedRun(
    {"version": "1", "asked": {"workload": "poisson:1", "slo": []}},
    [Arrival(0.5, 10, 2, "chat", blocks=(3, 4), block_tokens=8), Arrival(1.0, 5, 1)],
    [
        RequestRecord(
            0.5, 10, 2, sent_s=0.51, token_s=[1.0, 1.25], end_s=1.3, outcome="ok", request="req-1-1", label="chat"
        ),
        RequestRecord(1.0, 5, 1, sent_s=1.0, end_s=1.5, outcome="refused", detail="full"),
    ],
)


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_run(tmp_path / "run.jsonl", RUN)
    found = read_run(tmp_path / "run.jsonl")
    assert found.facts == {"dunlin_run": 1, **RUN.facts}
    assert list(found.records) == list(RUN.records)
    assert found.arrivals[0] == RUN.arrivals[0]
    assert (found.arrivals[1].at_s, found.arrivals[1].blocks) == (1.0, ())


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "line 1: no record of a run"),
        ('{"timestamp": 3}\n', "line 1: no record of a run; `dunlin replay --record FILE` writes one"),
        ("arrival_s\n", "line 1: no JSON"),
        ('{"dunlin_run": 1}\n[]\n', "line 2: an object must stand here"),
        ('{"dunlin_run": 1}\n{"at_s": 1}\n', "line 2: KeyError"),
        ('{"dunlin_run": 1}\n\n{"at_s": "x", "input_tokens": 1, "output_tokens": 1}\n', "line 3: ValueError"),
    ],
)
def test_what_is_no_record_is_named_with_its_line(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "r.jsonl").write_text(text)
    with pytest.raises(TraceError, match=rf"r\.jsonl: {complaint}"):
        read_run(tmp_path / "r.jsonl")
