"""What `dunlin drain` says of how far it is, and of what cannot be done."""

import pytest

from cli.commands.operate.drain import DrainProgress, check_drain_reply, drain_progress
from cli.common.errors import FAILED, UNREACHABLE, USAGE, CliError
from dunlin.messages.fleet import InstanceReport
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
