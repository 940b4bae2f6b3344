"""Lengths: what is drawn lies where it must, with the means that were asked for."""

from pathlib import Path
from random import Random

import pytest

from dunlin.workload.traffic.lengths import (
    FixedLengths,
    LengthSource,
    LognormalLengths,
    MixedLengths,
    UniformLengths,
    ZipfLengths,
    read_lengths,
)
from dunlin.workload.traffic.trace import TraceError


def drawn(lengths: LengthSource, count: int = 20_000) -> list[tuple[int, int]]:
    random = Random(5)
    return [lengths.draw(random) for _ in range(count)]


def means(pairs: list[tuple[int, int]]) -> tuple[float, float]:
    return sum(pair[0] for pair in pairs) / len(pairs), sum(pair[1] for pair in pairs) / len(pairs)


def test_fixed_is_fixed() -> None:
    assert set(drawn(FixedLengths(7, 3), 9)) == {(7, 3)}


def test_uniform_takes_in_its_ends() -> None:
    pairs = drawn(UniformLengths((1, 3), (4, 4)), 200)
    assert set(pairs) == {(1, 4), (2, 4), (3, 4)}


def test_lognormal_has_the_means_asked_for() -> None:
    inputs, outputs = means(drawn(LognormalLengths(642, 262, sigma=0.8)))
    assert inputs == pytest.approx(642, rel=0.05)
    assert outputs == pytest.approx(262, rel=0.05)
    assert all(min(pair) >= 1 and max(pair) <= 100 for pair in drawn(LognormalLengths(642, 1.0, most=100), 500))


def test_zipf_falls_with_rank_and_divides_by_its_ratio() -> None:
    pairs = drawn(ZipfLengths(1.0, 100, 1000, ratio=4.0))
    totals = [sum(pair) for pair in pairs]
    assert min(totals) == 100
    assert max(totals) <= 1000
    first, tenth = totals.count(100), sum(total == 109 for total in totals)
    assert first > 5 * tenth > 0  # rank 1 is ten times as likely as rank 10
    assert all(outputs == round((inputs + outputs) / 5) for inputs, outputs in pairs)


def test_a_mix_draws_by_weight() -> None:
    pairs = drawn(MixedLengths([FixedLengths(1, 1), FixedLengths(2, 2)], [1.0, 3.0]), 4000)
    assert pairs.count((2, 2)) / len(pairs) == pytest.approx(0.75, abs=0.03)


def test_a_seed_repeats() -> None:
    lengths = LognormalLengths(100, 100)
    assert drawn(lengths, 50) == drawn(lengths, 50)


def test_a_list_is_drawn_from(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("task,output_tokens,input_tokens\na,1,2\nb,3,4\n")
    assert set(drawn(read_lengths(path), 50)) == {(2, 1), (4, 3)}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("input_tokens\n1\n", "line 1: no column output_tokens"),
        ("input_tokens,output_tokens\n", "holds no lengths"),
        ("input_tokens,output_tokens\n1,0\n", "line 2: input_tokens and output_tokens must be 1 or more, not '1', '0'"),
        ("input_tokens,output_tokens\n1\n", "line 2: "),
        ("input_tokens,output_tokens\n1," + "9" * 5_000, "line 2: input_tokens and output_tokens must be"),
        ("input_tokens,output_tokens\n1," + "9" * 200_000, "cannot be read .*field"),
    ],
)
def test_a_bad_list_is_named_with_its_line(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "l.csv").write_text(text)
    with pytest.raises(TraceError, match=rf"l\.csv: {complaint}"):
        read_lengths(tmp_path / "l.csv")


def test_the_shared_lists_are_readable(shared: Path) -> None:
    paths = sorted((shared / "data" / "traces" / "lengths").glob("*.csv.gz"))
    assert len(paths) == 6
    assert all(len(read_lengths(path).pairs) >= 1000 for path in paths)
