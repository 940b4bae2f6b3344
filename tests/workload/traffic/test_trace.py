"""Reading traces: what is right is read, what is wrong is named with its line."""

import gzip
from pathlib import Path

import pytest

from dunlin.workload.traffic.trace import Arrival, TraceError
from dunlin.workload.traffic.trace_formats import parse_trace, read_trace

HEADER = "arrival_s,input_tokens,output_tokens\n"


def parse(text: str, duration_s: float | None = None) -> list[Arrival]:
    return list(parse_trace(text.splitlines(keepends=True), "t.csv", duration_s))


def test_rows_become_arrivals() -> None:
    assert parse(HEADER + "0.5,10,2\n1.25,3,4\n") == [Arrival(0.5, 10, 2), Arrival(1.25, 3, 4)]


def test_further_columns_in_any_order_are_fine() -> None:
    text = "class,output_tokens,weather,arrival_s,input_tokens\nlong,2,fair,0,10\n"
    assert parse(text) == [Arrival(0.0, 10, 2, "long")]


def test_duration_cuts_at_its_end() -> None:
    assert [a.at_s for a in parse(HEADER + "0,1,1\n4.9,1,1\n5,1,1\n", duration_s=5)] == [0, 4.9]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "line 1: no column arrival_s, input_tokens, output_tokens"),
        ("arrival_s,input_tokens\n", "line 1: no column output_tokens"),
        (HEADER + "0,1,1\nx,1,1\n", "line 3: arrival_s must be seconds .* not 'x'"),
        (HEADER + "nan,1,1\n", "line 2: arrival_s must be"),
        (HEADER + "-1,1,1\n", "line 2: arrival_s must be"),
        (HEADER + "inf,1,1\n", "line 2: arrival_s must be"),
        (HEADER + ",1,1\n", "line 2: arrival_s must be"),
        (HEADER + "0,0,1\n", "line 2: input_tokens must be a whole number of tokens, 1 or more, not '0'"),
        (HEADER + "0,1,1.5\n", "line 2: output_tokens must be .* not '1.5'"),
        (HEADER + "0,1,-2\n", "line 2: output_tokens must be"),
        (HEADER + "0,1\n", "line 2: output_tokens must be .* not None"),
        (HEADER + "0,²,1\n", "line 2: input_tokens must be"),
        (HEADER + "2,1,1\n1,1,1\n", r"line 3: arrival_s 1 comes before the line above \(2\); sort the rows"),
    ],
)
def test_a_bad_row_is_named_with_its_line(text: str, complaint: str) -> None:
    with pytest.raises(TraceError, match=rf"t\.csv: {complaint}"):
        parse(text)


def test_plain_and_gzip_files_read_alike(tmp_path: Path) -> None:
    text = HEADER + "0,1,1\n"
    (tmp_path / "a.csv").write_text(text)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode()))
    assert read_trace(tmp_path / "a.csv") == read_trace(tmp_path / "a.csv.gz") == [Arrival(0, 1, 1)]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "no.csv.gz").write_text("no gzip")
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress((HEADER + "0,1,1\n" * 999).encode())[:-20])
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\xff")
    packed = gzip.compress((HEADER + "0,1,1\n" * 999).encode())
    (tmp_path / "damaged.csv.gz").write_bytes(packed[:12] + bytes(9) + packed[21:])
    for name in ("missing.csv", "no.csv.gz", "cut.csv.gz", "bytes.csv", "damaged.csv.gz"):
        with pytest.raises(TraceError, match=f"{name}: cannot be read"):
            read_trace(tmp_path / name)


def test_a_trace_without_requests_is_no_trace(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(HEADER + "7,1,1\n")
    with pytest.raises(TraceError, match="holds no request within the first 5 s"):
        read_trace(tmp_path / "a.csv", 5)
    (tmp_path / "b.csv").write_text(HEADER)
    with pytest.raises(TraceError, match=r"holds no request$"):
        read_trace(tmp_path / "b.csv", float("inf"))


@pytest.mark.parametrize(
    "name", ["azure2023_conv_0_1699s", "mooncake_conversation_0_1800s", "pecsched_azure_conv_seed1"]
)
def test_public_traces_are_readable(shared: Path, name: str) -> None:
    rows = read_trace(shared / "data" / "traces" / f"{name}.csv.gz", 60)
    assert len(rows) > 50
