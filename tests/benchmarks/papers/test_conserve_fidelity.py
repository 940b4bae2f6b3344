"""What the comparison of chat beside batch work, live and simulated, counts."""

from dataclasses import replace

from benchmarks.papers.conserve_fidelity import BATCH, CHAT, Part, chat_of, compared, tokens_per_s
from dunlin.workload.loadgen.run_record import RecordedRun
from dunlin.workload.loadgen.stats import RequestRecord
from dunlin.workload.traffic.trace import Arrival
from dunlin.workload.traffic.workload_spec import read_workload
from simulator.study.live_comparison import resimulate
from tests.benchmarks.simulation.test_held_out import FACTS, TIMING


def test_tokens_count_until_the_last_one_came() -> None:
    chat = RequestRecord(0.0, 96, 2, token_s=[0.5, 1.0], label="chat")
    batch = RequestRecord(0.0, 384, 2, token_s=[2.0, 4.0], label="batch")
    nothing = RequestRecord(0.0, 10, 2, label="batch")
    assert tokens_per_s([chat, batch, nothing]) == (96 + 2 + 384 + 2) / 4.0
    arrivals = [Arrival(0.0, 1, 1, label=label) for label in ("chat", "batch", "batch")]
    assert chat_of(RecordedRun({}, arrivals, []), [chat, batch, nothing]) == [chat]


def test_a_part_has_chat_all_the_time_and_batch_work_from_the_start() -> None:
    arrivals = read_workload(f"{CHAT.format(rate=2.0)} + {BATCH.format(count=7)}", seed=1)
    batch = [one for one in arrivals if one.label == "batch"]
    assert (len(batch), batch[-1].at_s < 0.1) == (7, True)
    assert max(one.at_s for one in arrivals if one.label == "chat") > 15.0


def test_a_part_of_the_modelled_speed_differs_by_nothing() -> None:
    arrivals = [Arrival(0.15 * index, 20, 30, label="batch" if index % 3 else "chat") for index in range(12)]
    run = RecordedRun(FACTS, arrivals, [])
    live = replace(run, records=resimulate(run, TIMING))
    found = compared([Part(live, live, live)], TIMING)
    assert [(each.measure, each.quantile) for each in found][-1] == ("tokens/s", "")
    assert len(found) == 5
    assert all(abs(each.relative) < 0.01 and each.live_s > 0 for each in found)
