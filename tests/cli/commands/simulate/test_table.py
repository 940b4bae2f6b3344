"""Tables of simulations: nothing that was lost is left out, and what never came is said to be never."""

from math import inf

from cli.commands.simulate.table import render
from dunlin.workload.loadgen.stats import RequestRecord
from simulator.study.report import SimulationOutcome, figures


def rows(records: list[RequestRecord]) -> dict[str, str]:
    lines = render([figures(SimulationOutcome("fifo", records, [0.0] * len(records), {}), {})]).splitlines()
    return {name.strip(): value for name, value in (line.rsplit("  ", 1) for line in lines[1:])}


def test_losses_have_rows_of_their_own_also_where_there_are_none() -> None:
    good = RequestRecord(0.0, 5, 2, token_s=[1.0, 2.0], outcome="ok", end_s=2.0)
    found = rows([good])
    losses = ("refused", "expired", "failed", "no first token", "clipped")
    assert [found[name].strip() for name in losses] == ["0"] * 5
    bad = [RequestRecord(0.0, 5, 2, outcome=outcome, clipped=True) for outcome in ("refused", "expired", "error")]
    found = rows([good, *bad])
    assert [found[name].strip() for name in losses] == ["1", "1", "1", "3", "3"]
    assert found["TTFT p50 s"].strip() == "never"
    assert figures(SimulationOutcome("fifo", bad, [-1.0] * 3, {}), {}).queueing_s.p50 == inf
