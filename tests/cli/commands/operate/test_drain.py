"""What `dunlin drain` says of how far it is, and of what cannot be done."""

from typing import Any

import pytest

from cli.commands.operate.drain import DrainProgress, check_drain_reply, drain_progress, follow
from cli.common.errors import FAILED, UNREACHABLE, USAGE, CliError
from dunlin.effects import Address
from dunlin.messages.fleet import FleetStatus, InstanceReport, MemberStatus
from dunlin.messages.plan import DrainOutcome, DrainReply


def test_progress_counts_since_the_beginning() -> None:
    before = {"a": InstanceReport(migrations_total=7, running=5), "b": InstanceReport(arrivals_total=4)}
    now = {
        "a": InstanceReport(draining=True, migrations_total=9, running=2, waiting=1, leaving=2),
        "b": InstanceReport(arrivals_total=5),
        "c": InstanceReport(arrivals_total=1),
    }
    state = drain_progress("a", before, now)
    assert state == DrainProgress(remaining=3, leaving=2, moved=2, arrived=(("b", 1), ("c", 1)))
    assert str(state) == "3 left, 2 on their way, 2 moved (b 1, c 1)"


@pytest.mark.parametrize("now", [{}, {"a": InstanceReport(running=2)}])
def test_an_instance_that_does_not_drain_yet_has_no_progress(now: dict[str, InstanceReport]) -> None:
    assert drain_progress("a", {}, now) is None


@pytest.mark.parametrize(
    ("outcome", "code", "text"),
    [
        (DrainOutcome.UNKNOWN_INSTANCE, USAGE, "no instance is called 'a' \\(why\\)"),
        (DrainOutcome.NOWHERE_TO_GO, FAILED, "start another instance, or take one back, first"),
        (DrainOutcome.NOT_LEADER, UNREACHABLE, "try again"),
    ],
)
def test_refusals_say_what_to_do(outcome: DrainOutcome, code: int, text: str) -> None:
    with pytest.raises(CliError, match=text) as caught:
        check_drain_reply("a", DrainReply(outcome, "why"))
    assert caught.value.code == code


@pytest.mark.parametrize("outcome", [DrainOutcome.ORDERED, DrainOutcome.ALREADY])
def test_what_was_done_or_is_so_already_is_no_error(outcome: DrainOutcome) -> None:
    check_drain_reply("a", DrainReply(outcome))


class Looks:
    """In place of a client: the looks at the fleet, one after the other."""

    def __init__(self, *looks: FleetStatus) -> None:
        self.left = list(looks)

    def status(self) -> FleetStatus:
        return self.left.pop(0)


def fleet(report: InstanceReport | None, incarnation: int = 7) -> FleetStatus:
    return FleetStatus(1, (MemberStatus(Address("instance", "a", incarnation), instance=report),))


DRAINS = InstanceReport(draining=True, running=1)
EMPTY = InstanceReport(draining=True)


def test_a_drain_goes_on_while_a_new_monitor_has_no_report(capsys: pytest.CaptureFixture[str]) -> None:
    looks: Any = Looks(fleet(DRAINS), fleet(None), fleet(EMPTY))
    assert follow(looks, "a", fleet(InstanceReport(running=1)), 120.0) == 0
    assert "a is empty after" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ({"spread_running": 1, "guest_slots": 500}, "1 left, 0 on their way, 0 moved, 500 slots of its group in use"),
        ({"spread_waiting": 2}, "2 left, 0 on their way, 0 moved"),
        ({"guest_slots": 70}, "0 left, 0 on their way, 0 moved, 70 slots of its group in use"),
    ],
)
def test_one_that_computes_with_a_group_is_not_empty(
    held: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    looks: Any = Looks(fleet(InstanceReport(draining=True, **held)), fleet(EMPTY))
    assert follow(looks, "a", fleet(InstanceReport()), 120.0) == 0
    assert f" s: {said}\n" in capsys.readouterr().out
    assert not looks.left


@pytest.mark.parametrize("later", [FleetStatus(1, ()), fleet(InstanceReport(), 8), fleet(None, 8)])
def test_a_process_that_ended_does_not_drain_any_more(later: FleetStatus) -> None:
    looks: Any = Looks(fleet(DRAINS), later)
    with pytest.raises(CliError, match="a is gone: its process ended while it drained"):
        follow(looks, "a", fleet(InstanceReport(running=1)), 120.0)
    assert not looks.left
