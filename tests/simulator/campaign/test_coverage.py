"""Coverage names the phases in which a kind of fault struck no process."""

from simulator.campaign.coverage import Coverage


def test_coverage_names_the_phases_in_which_a_fault_struck_no_process() -> None:
    coverage = Coverage()
    coverage.fault_applied("late_orders", "global_manager", "leading")
    coverage.fault_applied("late_orders", "kvstore", "quarantined")
    assert coverage.report().splitlines()[-2:] == [
        "  late_orders: global_manager leading 1, kvstore quarantined 1",
        "    never: global_manager standing by, kvstore reserved, kvstore committed, kvstore empty",
    ]
