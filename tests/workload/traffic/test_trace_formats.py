"""The published formats, each told by its first line; what is wrong is named with its line."""

import gzip
from pathlib import Path

import pytest

from dunlin.workload.traffic.trace import Arrival, TraceError
from dunlin.workload.traffic.trace_formats import parse_trace, read_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def parse(text: str) -> list[Arrival]:
    return list(parse_trace(text.splitlines(keepends=True), "t"))


def test_azure_counts_from_its_first_row() -> None:
    rows = "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    assert [(one.at_s, one.input_tokens, one.output_tokens) for one in parse(AZURE + rows)] == [
        (0.0, 374, 44),
        (pytest.approx(4.314579, abs=1e-6), 396, 109),
    ]


def test_azure_of_2024_names_its_zone() -> None:
    rows = "2024-05-10 00:00:00+00:00,10,2\n2024-05-10 02:00:01.5+02:00,10,2\n"
    assert [one.at_s for one in parse(AZURE + rows)] == [0.0, 1.5]


def test_burstgpt_leaves_out_what_failed() -> None:
    rows = "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,API log\n118,GPT-4,417,276,693,API log\n"
    assert parse(BURST + rows) == [
        Arrival(5.0, 472, 18, "Conversation log", "ChatGPT"),
        Arrival(118.0, 417, 276, "API log", "GPT-4"),
    ]


def test_mooncake_is_in_milliseconds_and_names_its_blocks() -> None:
    lines = (
        '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [46, 47]}\n\n'
        '{"timestamp": 27482, "input_length": 512, "output_length": 52, "hash_ids": [46]}\n'
    )
    assert parse(lines) == [
        Arrival(0.0, 600, 5, blocks=(46, 47)),
        Arrival(27.482, 512, 52, blocks=(46,)),
    ]


def test_our_own_has_blocks_classes_and_senders() -> None:
    text = "arrival_s,input_tokens,output_tokens,hash_ids,class,client,source\n0,600,2,7 8,long,3,\n1,5,2,,,,surge1\n"
    assert parse(text) == [
        Arrival(0.0, 600, 2, "long", "3", (7, 8)),
        Arrival(1.0, 5, 2, "", "surge1"),
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("when,what\n", "line 1: no column .*; a trace is CSV with arrival_s,.*Azure.*BurstGPT.*Mooncake"),
        ("TIMESTAMP,ContextTokens\n", "line 1: no column GeneratedTokens"),
        (BURST.replace("Log Type", "x"), "line 1: no column Log Type"),
        (AZURE + "yesterday,1,1\n", "line 2: TIMESTAMP must be a date .* not 'yesterday'"),
        (AZURE + "2023-11-16 18:15:46,1,-1\n", "line 2: GeneratedTokens must be .* 0 or more, not '-1'"),
        (AZURE + "2023-11-16 18:15:46,1,1\n2023-11-16 18:15:45,1,1\n", "line 3: .* before the line above"),
        (BURST + "x,m,1,1,2,l\n", "line 2: Timestamp must be seconds"),
        ('{"timestamp": 1}\n', "line 1: no input_length, output_length"),
        ('{"timestamp": 1\n', "line 1: no JSON"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1}\n[1]\n', "line 2: no timestamp"),
        ('{"timestamp": null, "input_length": 1, "output_length": 1}\n', "line 1: timestamp must be milliseconds"),
        ('{"timestamp": 0, "input_length": true, "output_length": 1}\n', "line 1: input_length must be"),
        ('{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": "a"}\n', "line 1: hash_ids must be"),
        ('{"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [1]}\n', "line 1: 1 hash_ids for 513"),
        *(
            (
                f'{{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [{one}]}}\n',
                "line 1: hash_ids must",
            )
            for one in ("1.5", "NaN", "Infinity", "null")
        ),
        ("arrival_s,input_tokens,output_tokens\n0,\x001,1\n", "line 2: "),
    ],
)
def test_what_is_wrong_is_named(text: str, complaint: str) -> None:
    with pytest.raises(TraceError, match=rf"t: {complaint}"):
        parse(text)


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_published_file_is_read_from_disk(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"mooncake.jsonl{ending}"
    data = b'{"timestamp": 500, "input_length": 3, "output_length": 5, "hash_ids": [1]}\n'
    path.write_bytes(gzip.compress(data) if ending else data)
    assert read_trace(path) == [Arrival(0.5, 3, 5, blocks=(1,))]


def test_every_shared_trace_is_readable(shared: Path) -> None:
    counts = {path.name: len(read_trace(path)) for path in sorted((shared / "data" / "traces").glob("*.csv.gz"))}
    assert len(counts) == 8
    assert counts["mooncake_conversation_0_1800s.csv.gz"] == 5719
    assert counts["servegen_m-large_sample_1800s.csv.gz"] == 17854


def test_the_shared_columns_arrive(shared: Path) -> None:
    traces = shared / "data" / "traces"
    assert {one.label for one in read_trace(traces / "pecsched_azure_conv_seed1.csv.gz")} == {"short", "long"}
    assert {one.client for one in read_trace(traces / "kunserve_analog_A.csv.gz")} == {"base", "surge1", "surge2"}
    first = read_trace(traces / "mooncake_conversation_0_1800s.csv.gz")[0]
    assert first.blocks == tuple(range(14))
