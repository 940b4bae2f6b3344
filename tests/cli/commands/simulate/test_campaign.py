"""What a campaign says of its progress, on a terminal and in a log."""

from io import StringIO

from cli.commands.simulate.campaign import CampaignProgress
from simulator.campaign.outcome import TrialOutcome
from simulator.campaign.violation import Violation


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def said(out: StringIO, every_s: float) -> str:
    """After three seeds, each `every_s` after the one before; the second breaks an invariant."""
    now_s = [100.0]
    progress = CampaignProgress(400, out, lambda: now_s[0])
    for violation in (None, Violation("I1", 3.0, "twice"), None):
        now_s[0] += every_s
        progress(TrialOutcome(1, violation))
    return out.getvalue()


def test_in_a_log_progress_is_a_line_a_minute_and_one_for_each_violation() -> None:
    found, progress = said(StringIO(), 30.0).splitlines()
    assert found == "seed 1: I1 at 3.000000 s: twice"
    assert progress == "[....................] 2 of 400 seeds, 1 violations; 2 seeds a minute, 199 minutes left"


def test_on_a_terminal_it_is_one_line_that_changes() -> None:
    found, progress = said(Terminal(), 3.0).split("\n")
    assert found == "\rseed 1: I1 at 3.000000 s: twice"
    assert progress == "\r[....................] 2 of 400 seeds, 1 violations; 20 seeds a minute, 20 minutes left"
