"""What `dunlin top` draws, from statuses; and that the terminal is left as it was found."""

import os
import pty
import re
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import pytest

from cli.commands.operate.top_view import StatusSample, bar, render_status, short_bytes, short_number
from dunlin.effects import Address
from dunlin.messages.fleet import (
    DispatcherReport,
    FleetStatus,
    InstanceReport,
    KvstoreReport,
    ManagerReport,
    MemberStatus,
)
from dunlin.messages.types import GroupKind, GroupRole

REPORT = InstanceReport(ready=True, capacity_slots=1000, free_slots=200, cached_slots=50, running=3, tokens_total=100)


def instance(name: str = "instance-0", **changes: Any) -> MemberStatus:
    made = MemberStatus(Address("instance", name, 12), "node", connected=True, instance=REPORT)
    return replace(made, **changes)


def fleet(*more: MemberStatus, one: MemberStatus | None = None) -> FleetStatus:
    members = (
        one or instance(),
        MemberStatus(Address("dispatcher", "d-0", 3), connected=True, dispatcher=DispatcherReport(queued=7, running=2)),
        MemberStatus(
            Address("kvstore", "kv-0", 4),
            connected=True,
            kvstore=KvstoreReport(capacity_bytes=64 << 20, used_bytes=16 << 20, regions=5),
        ),
        MemberStatus(Address("global_manager", "m-0", 5), connected=True, manager=ManagerReport(9, 2)),
        *more,
    )
    return FleetStatus(33, members, suspicions_total=1, reasons_held=4)


def drawn(status: FleetStatus, before: FleetStatus | None = None, width: int = 100) -> str:
    return "\n".join(render_status(StatusSample(status, before, 2.0, "12:00:00"), width))


def row(text: str, name: str) -> list[str]:
    return next(line.split() for line in text.splitlines() if line.startswith(name))


def test_an_instance_shows_its_load_without_what_is_only_cached() -> None:
    words = row(drawn(fleet()), "instance-0")
    assert words[1] == "up"
    assert words[3:5] == ["75%", "1.0k"]
    assert words[5:] == ["3", "0", "0", "0", "0", "0", "0"]


def test_the_first_line_names_the_view_and_the_time() -> None:
    assert drawn(fleet()).splitlines()[0].split() == ["dunlin", "view", "33", "12:00:00"]


def test_rates_are_growth_per_second() -> None:
    later = fleet(one=instance(instance=replace(REPORT, tokens_total=350, prefill_tokens_total=4000)))
    text = drawn(later, fleet())
    assert row(text, "instance-0")[7:9] == ["125", "2.0k"]
    assert text.splitlines()[1].startswith("125 tokens/s  2.0k prefill/s  3 running  0 waiting  7 queued")


def test_a_counter_that_began_again_makes_no_negative_rate() -> None:
    assert row(drawn(fleet(), fleet(one=instance(instance=replace(REPORT, tokens_total=900)))), "instance-0")[7] == "0"


@pytest.mark.parametrize(
    ("one", "word"),
    [
        (instance(suspect=True), "suspect"),
        (instance(connected=False), "away"),
        (instance(instance=replace(REPORT, ready=False)), "starting"),
        (instance(instance=replace(REPORT, draining=True)), "draining"),
    ],
)
def test_states(one: MemberStatus, word: str) -> None:
    assert row(drawn(fleet(one=one)), "instance-0")[1] == word


def test_suspects_stand_in_the_headline() -> None:
    assert drawn(fleet(one=instance(suspect=True))).splitlines()[1].endswith("1 suspect")


def test_the_others_have_their_sections() -> None:
    text = drawn(fleet())
    assert row(text, "d-0")[1:4] == ["up", "7", "2"]
    assert "16M of 64M" in text
    assert "m-0 leads, epoch 9, plan 2" in text


def test_groups_of_several_and_long_requests_that_wait_are_shown() -> None:
    grouped = instance(instance=replace(REPORT, kind=GroupKind.ELASTIC, part=GroupRole.LEADER, group=7))
    status = fleet(one=grouped)
    leads = ManagerReport(9, 2, long_waiting=4)
    members = tuple(replace(one, manager=leads) if one.manager is not None else one for one in status.members)
    text = drawn(replace(status, members=members))
    assert "groups of several: 7: instance-0" in text
    assert "plan 2, 4 long requests wait" in text


def test_an_empty_fleet_says_so() -> None:
    text = drawn(FleetStatus(1, ()))
    assert "no instance" in text
    assert "no dispatcher" in text
    assert "no global manager" in text


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    many = [instance(f"a-rather-long-name-of-an-instance-{i}", suspect=i == 1) for i in range(3)]
    lines = render_status(StatusSample(fleet(*many), fleet(), 1.0, "12:00:00"), width)
    assert max(map(len, lines)) <= max(width, 72)


def test_colors_take_no_room() -> None:
    plain = render_status(StatusSample(fleet()), 80)
    painted = render_status(StatusSample(fleet()), 80, lambda text, mood: f"<{mood}>{text}<>")
    assert [re.sub(r"<\w*>", "", line) for line in painted] == plain


def test_bars() -> None:
    assert [bar(part, 4) for part in (0.0, 0.125, 0.5, 1.0, 7.0, -1.0)] == [
        "····", "▌···", "██··", "████", "████", "····",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (999, "999"), (1000, "1.0k"), (9949, "9.9k"), (12_345, "12k"), (999_600, "1.0M"), (3.4e9, "3.4G")],
)
def test_short_numbers(value: float, text: str) -> None:
    assert short_number(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (5 << 20, "5.0M"), (64 << 20, "64M"), (3 << 30, "3.0G"), (2 << 40, "2.0T")]
)
def test_sizes(value: int, text: str) -> None:
    assert short_bytes(value) == text


_PROGRAM = """
import sys
from cli.commands.operate import top
from dunlin.messages.fleet import FleetStatus
class Client:
    def status(self): return FleetStatus(1, ())
sys.exit(top._watch(Client(), 0.1))
"""


def test_on_a_terminal_it_draws_over_itself_until_q() -> None:
    main, side = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", _PROGRAM], stdin=side, stdout=side, stderr=side)
    os.close(side)
    said = b""
    while said.count(b"\x1b[H") < 3:
        said += os.read(main, 4096)
    os.write(main, b"q")
    deadline_s = time.monotonic() + 300
    while b"\x1b[?1049l" not in said and time.monotonic() < deadline_s:
        said += os.read(main, 4096)
    assert process.wait(300) == 0
    os.close(main)
    assert said.startswith(b"\x1b[?1049h\x1b[?25l")
    assert b"\x1b[2J" not in said  # never cleared: that would flicker
    assert said.rstrip().endswith(b"\x1b[?25h\x1b[?1049l")
