"""Each kind that a live run strikes has its action, and nothing else has."""

from benchmarks.faults.chaos.injector import GROUPS, kinds_of
from benchmarks.faults.chaos.kinds import LIVE_KINDS
from benchmarks.faults.chaos.processes import has_registered


def test_the_kinds_are_the_actions() -> None:
    assert sorted(kind for group in GROUPS for kind in kinds_of(group)) == list(LIVE_KINDS)


def test_a_process_has_registered_once_its_log_says_so_since_its_start() -> None:
    begun, registered = (
        "10:00 kvstore INFO settings given: a=1\n",
        "10:01 kvstore INFO /x is registered: incarnation 7\n",
    )
    assert not has_registered("")
    assert not has_registered(begun)
    assert has_registered(begun + registered)
    assert not has_registered(begun + registered + begun)
