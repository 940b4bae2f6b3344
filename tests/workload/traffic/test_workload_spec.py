"""Workloads from their specifications: rates, lengths, prefixes, mixes, and complaints that help."""

import itertools
from pathlib import Path

import pytest

from dunlin.workload.traffic.help_texts import HELP
from dunlin.workload.traffic.spec_grammar import WorkloadError
from dunlin.workload.traffic.trace import TraceError
from dunlin.workload.traffic.workload_spec import KINDS, LENGTHS, read_workload


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    rows = "".join(f"{i},{10 + i},{1 + i},{'long' if i % 10 == 9 else 'short'}\n" for i in range(100))
    (tmp_path / "t.csv").write_text("arrival_s,input_tokens,output_tokens,class\n" + rows)
    return tmp_path / "t.csv"


def gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def test_poisson_has_its_rate() -> None:
    made = read_workload("poisson:rate=20,duration=500,lengths=fixed(7,3)", seed=1)
    assert len(made) == pytest.approx(10_000, rel=0.05)
    assert {(one.input_tokens, one.output_tokens) for one in made} == {(7, 3)}
    assert made[-1].at_s < 500


def test_gamma_has_its_variation() -> None:
    between = gaps([one.at_s for one in read_workload("gamma:4,cv=3,requests=20000", seed=1)])
    mean = sum(between) / len(between)
    spread = (sum((gap - mean) ** 2 for gap in between) / len(between)) ** 0.5
    assert mean == pytest.approx(0.25, rel=0.1)
    assert spread / mean == pytest.approx(3, rel=0.1)


def test_on_off_is_silent_when_off() -> None:
    made = read_workload("onoff:on=10,on_s=5,off_s=15,duration=100")
    assert all(one.at_s % 20 < 5 for one in made)
    assert len(made) == pytest.approx(250, rel=0.3)


def test_requests_end_it_exactly() -> None:
    assert len(read_workload("poisson:rate=5,requests=17")) == 17


def test_the_duration_given_apart_ends_and_cuts() -> None:
    assert max(one.at_s for one in read_workload("poisson:5", duration_s=10)) < 10
    assert max(one.at_s for one in read_workload("poisson:5,duration=100", duration_s=10)) < 10


def test_a_seed_repeats_and_another_differs() -> None:
    text = "poisson:5,duration=20 + poisson:5,duration=20,prefix=shared(3,8)"
    assert read_workload(text, 1) == read_workload(text, 1)
    assert read_workload(text, 1) != read_workload(text, 2)
    assert [one.at_s for one in read_workload(text, 1) if one.blocks] != [
        one.at_s for one in read_workload(text, 1) if not one.blocks
    ]


def test_a_trace_is_read_cut_stretched(trace: Path) -> None:
    assert len(read_workload(str(trace))) == len(read_workload(f"trace:{trace}")) == 100
    made = read_workload(f"trace:{trace},from=10,duration=20,stretch=2")
    assert [one.at_s for one in made] == [2.0 * i for i in range(10)]
    assert made[0].input_tokens == 20
    assert [one.at_s for one in read_workload(f"{trace},stretch=2", duration_s=5)] == [0.0, 2.0, 4.0]


def test_a_trace_is_brought_to_a_rate(trace: Path) -> None:
    assert len(read_workload(f"trace:{trace},rate=0.5,duration=50")) == 25
    assert len(read_workload(f"trace:{trace},rate=3,duration=50")) == 150
    assert len(read_workload(f"trace:{trace},rate=3,stretch=2,duration=50")) == 150


def test_a_trace_that_ends_before_the_duration_has_the_rate_while_it_lasts(trace: Path) -> None:
    """All 3 x 50 requests came in the ten seconds that are left of it: at 15/s."""
    made = read_workload(f"trace:{trace},from=90,rate=3,duration=50,jitter=0")
    assert len(made) == 3 * 9
    assert {one.at_s for one in made} == {float(second) for second in range(10)}
    assert len(read_workload(f"trace:{trace},from=90,rate=3,duration=9")) == 27
    assert len(read_workload(f"trace:{trace},rate=3,duration=50,stretch=0.1")) == 30


def test_a_silence_at_the_end_of_the_duration_counts(tmp_path: Path) -> None:
    text = "arrival_s,input_tokens,output_tokens\n0,1,1\n1,1,1\n30,1,1\n"
    (tmp_path / "t.csv").write_text(text)
    made = read_workload(f"trace:{tmp_path / 't.csv'},rate=2,duration=20")
    assert (len(made), made[-1].at_s < 3) == (40, True)


def test_the_rate_is_that_of_the_class_which_is_taken(trace: Path) -> None:
    for rate in (0.1, 2):
        made = read_workload(f"trace:{trace},only=long,rate={rate},duration=50")
        assert [one.label for one in made] == ["long"] * round(rate * 50)
    assert len(read_workload(f"trace:{trace},only=long,sample=1,over=10")) == 10
    made = read_workload(f"trace:{trace},rate=2,duration=50,rewrite=long(0.05,8000,9000),only=long")
    assert [one.label for one in made] == ["long"] * 5, "5 % of what comes at the rate"


def test_a_trace_may_lend_its_times_alone_or_a_class(trace: Path) -> None:
    made = read_workload(f"trace:{trace},lengths=fixed(1,2)")
    assert {(one.input_tokens, one.output_tokens) for one in made} == {(1, 2)}
    assert len(read_workload(f"trace:{trace},only=long")) == 10


def test_lengths_come_from_files_and_mixes(trace: Path) -> None:
    made = read_workload(f"poisson:10,requests=500,lengths=mixed({trace},3*fixed(1000,1))", seed=2)
    fixed = sum(one.input_tokens == 1000 for one in made)
    assert fixed / 500 == pytest.approx(0.75, abs=0.08)
    assert {one.input_tokens for one in made} - {1000} <= set(range(10, 110))


@pytest.mark.parametrize(
    "lengths",
    [
        "fixed(5,2)",
        "uniform(1..5,2..3)",
        "lognormal(50,20,sigma=0.5)",
        "zipf(1.2,16,64,ratio=1)",
        "zipf(1,low=2,high=2)",
    ],
)
def test_every_kind_of_lengths_makes_requests(lengths: str) -> None:
    made = read_workload(f"poisson:10,requests=50,lengths={lengths}")
    assert all(one.input_tokens >= 1 and one.output_tokens >= 1 for one in made)


def test_prefixes_are_shared_by_zipfs_law() -> None:
    made = read_workload("poisson:10,requests=3000,prefix=shared(count=4,tokens=32,theta=1)")
    counts = [sum(one.blocks == (name,) for one in made) for name in range(4)]
    assert sum(counts) == 3000
    assert counts[0] / counts[3] == pytest.approx(4, rel=0.25)
    assert {one.block_tokens for one in made} == {32}


def test_a_mix_keeps_classes_and_keeps_prefixes_apart() -> None:
    made = read_workload(
        "poisson:5,requests=50,class=a,prefix=shared(1,8) + poisson:5,requests=50,class=b,prefix=shared(1,8)"
    )
    assert len(made) == 100
    assert len({one.blocks for one in made if one.label == "a"} | {one.blocks for one in made if one.label == "b"}) == 2
    assert [one.at_s for one in made] == sorted(one.at_s for one in made)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("fractal:rate=1", r"'fractal' is neither a kind \(poisson, gamma, onoff, trace\) nor a file; you may say"),
        ("poisson", "poisson needs rate=…"),
        ("poisson:rate=1", "it would never end: say duration=SECONDS or requests=N"),
        ("poisson:rate=-1,duration=1", "rate must be a number above 0, not '-1'"),
        ("poisson:1,duration=1,burst=2", "poisson knows no burst; it takes class, documents, duration, lengths"),
        ("poisson:rate=0.000001,duration=1", "no request arrives"),
        ("gamma:1,duration=1", "gamma needs cv=…"),
        ("poisson:1,requests=1,lengths=long", "lengths 'long' are neither a file nor one of fixed, uniform"),
        ("poisson:1,requests=1,lengths=fixed(1)", "fixed needs output=…"),
        ("poisson:1,requests=1,lengths=fixed(1,2,3)", "at most 2 values"),
        ("poisson:1,requests=1,lengths=uniform(5..1,1..2)", "input of uniform must be LOW..HIGH"),
        ("poisson:1,requests=1,lengths=zipf(1,10,5)", "high must be a whole number from 10"),
        ("poisson:1,requests=1,lengths=mixed()", "mixed needs sources"),
        ("poisson:1,requests=1,lengths=mixed(x*fixed(1,1))", "weight must be a number above 0, not 'x'"),
        ("poisson:1,requests=1,prefix=tree(1)", r"no prefix 'tree': there is shared\(count,tokens,theta\)"),
        ("trace", "trace needs file=…"),
    ],
)
def test_complaints_say_what_and_where(text: str, complaint: str) -> None:
    with pytest.raises(WorkloadError, match=complaint) as caught:
        read_workload(text)
    assert text in str(caught.value)


def test_there_is_an_end_to_it(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dunlin.workload.traffic.workload_spec.MOST_REQUESTS", 100)
    for text in ("poisson:rate=1e9,duration=1e9", f"trace:{trace},rate=3,duration=40"):
        with pytest.raises(WorkloadError, match="more than 100 requests; make the rate or the duration smaller"):
            read_workload(text)


def test_a_file_that_is_none_is_named() -> None:
    for text in ("/no/such.csv", "trace:/no/such.csv", "no-such.csv.gz"):
        with pytest.raises(TraceError, match=r"no.such.*: cannot be read"):
            read_workload(text)


def test_the_manual_shows_every_kind() -> None:
    assert all(f"  {kind}:" in HELP for kind in KINDS)
    assert all(f"{name}(" in HELP for name in LENGTHS)


def test_what_the_manual_shows_is_taken(trace: Path) -> None:
    shown = [line.split("  ")[1] for line in HELP.splitlines() if line.startswith("  ") and ":" in line.split("  ")[1]]
    assert len(shown) == 8
    for text in shown:
        assert read_workload(text.replace("FILE,from=60", f"{trace},from=60").replace("FILE", str(trace)))
