"""Tables: good ones are read, in seconds; of bad ones the file and the line are named."""

import gzip
from pathlib import Path

import pytest

from cli.profiling.fitting.tables import ATTENTION, COLLECTIVES, GEMM, TableError, read_table


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_times_become_seconds(tmp_path: Path) -> None:
    table = read_table(write(tmp_path / "t.csv", "m,n,k,latency_ms,more\n1,2,3,0.5,x\n4,5,6,2,y\n"), GEMM)
    assert len(table) == 2
    assert table.columns("m", "n", "k").tolist() == [[1, 2, 3], [4, 5, 6]]
    assert table.numbers["latency"].tolist() == [0.0005, 0.002]
    assert table.where(table.numbers["m"] > 1).numbers["k"].tolist() == [6]


def test_words_select_rows_of_a_compressed_table(tmp_path: Path) -> None:
    header = "operation,backend,num_gpus,message_bytes,latency_ms\n"
    with gzip.open(tmp_path / "t.csv.gz", "wt") as file:
        file.write(header + "all_reduce,nccl,2,512,1\nall_gather,nccl,4,512,1\n")
    table = read_table(tmp_path / "t.csv.gz", COLLECTIVES)
    assert table.where(table.word_is("operation", "all_gather")).numbers["num_gpus"].tolist() == [4]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "t.csv:1: the header lacks m, n, k, latency_ms"),
        ("m,n,k\n", "t.csv:1: the header lacks latency_ms"),
        ("m,n,k,latency_ms\n", "t.csv:1: no rows"),
        ("m,n,k,latency_ms\n1,2,3,4\n1,2,3\n", "t.csv:3: 3 columns where the header has 4"),
        ("m,n,k,latency_ms\n1,2,x,4\n", "t.csv:2: k is 'x', not an integer"),
        ("m,n,k,latency_ms\n1,0,3,4\n", "t.csv:2: n is 0, less than 1"),
        ("m,n,k,latency_ms\n1,2,3,fast\n", "t.csv:2: latency_ms is 'fast', not a number"),
        ("m,n,k,latency_ms\n1,2,3,0\n", "t.csv:2: latency_ms is 0, not a time"),
        ("m,n,k,latency_ms\n1,2,3,-1\n", "t.csv:2: latency_ms is -1, not a time"),
        ("m,n,k,latency_ms\n1,2,3,nan\n", "t.csv:2: latency_ms is nan, not a time"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(TableError) as caught:
        read_table(write(tmp_path / "t.csv", text), GEMM)
    assert said in str(caught.value)


def test_an_empty_word_is_named(tmp_path: Path) -> None:
    text = "operation,backend,num_gpus,message_bytes,latency_ms\n,nccl,2,512,1\n"
    with pytest.raises(TableError, match=r"t.csv:2: operation is empty"):
        read_table(write(tmp_path / "t.csv", text), COLLECTIVES)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.csv.gz").write_bytes(b"not compressed")
    for name in ("t.csv.gz", "missing.csv"):
        with pytest.raises(TableError, match=f"{name}: cannot be read"):
            read_table(tmp_path / name, ATTENTION)
