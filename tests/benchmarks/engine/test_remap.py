"""The benchmark of a change of layers, small and without thresholds on times."""

from benchmarks.engine.remap import RemapPlan, measure
from benchmarks.harness.report import BenchmarkResult


def test_it_reports_every_phase_and_the_slots() -> None:
    outcome = BenchmarkResult("remap")
    measure(RemapPlan(layers=2, kv_mib=8, rounds=1), outcome)
    before, dropped, released, back = outcome.figures["slots: before, weights dropped, KV released, back"]
    assert before == back == 4096
    assert before < dropped < released
    phases = {name.split(":")[0] for name in outcome.figures if "stall" in name}
    assert phases == {
        *("PREPARE", "DROP_WEIGHTS", "RELEASE_KV"),
        *(f"{phase} from {source}" for phase in ("PREPARE", "LOAD", "COMMIT") for source in ("host", "disk")),
    }
