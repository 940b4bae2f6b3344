"""The access log as a file: whole lines, bounded files, and no write that blocks the caller."""

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from dunlin.wire.errors import StartError
from services.dispatcher.doors.access_log import AccessLog, encode_line
from services.dispatcher.process_config import AccessLogConfig


def line(number: int) -> Mapping[str, object]:
    return {"time_s": 1_700_000_000.25, "number": number}


def numbers(path: Path) -> list[int]:
    return [json.loads(text)["number"] for text in path.read_text().splitlines()]


def until(condition: Callable[[], bool]) -> None:
    limit_s = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < limit_s
        time.sleep(0.002)


def test_lines_are_json_with_a_time_in_utc(tmp_path: Path) -> None:
    log = AccessLog(AccessLogConfig(str(tmp_path / "a.jsonl")))
    log.write({"time_s": 1_700_000_000.25, "agent": "a\n\x1b[31m \u2028", "queue_s": 0.123456789, "model": None})
    log.close()
    (text,) = (tmp_path / "a.jsonl").read_text().split("\n")[:-1]
    assert text.isascii()
    assert json.loads(text) == {
        "time": "2023-11-14T22:13:20.250+00:00",
        "agent": "a\n\x1b[31m \u2028",
        "queue_s": 0.123457,
        "model": None,
    }
    assert (log.lines_total, log.dropped_total) == (1, 0)
    assert os.stat(tmp_path / "a.jsonl").st_mode & 0o007 == 0, "it names clients: other users must not read it"


def test_a_full_file_makes_way_and_only_so_many_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    log = AccessLog(AccessLogConfig(str(path), max_bytes=2 * len(encode_line(line(0))), max_old_files=2))
    for number in range(10):
        log.write(line(number))
        until(lambda: log.lines_total == number + 1)  # noqa: B023  # called at once
    log.close()
    assert {found.name: numbers(found) for found in tmp_path.iterdir()} == {
        "a.jsonl": [8, 9],
        "a.jsonl.1": [6, 7],
        "a.jsonl.2": [4, 5],
    }


def test_it_continues_in_a_new_file_when_another_program_moved_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    log = AccessLog(AccessLogConfig(str(path)))
    log.write(line(1))
    until(lambda: log.lines_total == 1)
    path.rename(tmp_path / "taken")
    log.write(line(2))
    log.close()
    assert (numbers(tmp_path / "taken"), numbers(path)) == ([1], [2])


def test_what_was_there_before_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for number in (1, 2):
        log = AccessLog(AccessLogConfig(str(path)))
        log.write(line(number))
        log.close()
    assert numbers(path) == [1, 2]


class Slow:
    """A disk that hangs until it is let go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.go_on = threading.Event()
        self.data = b""

    def write(self, data: bytes) -> None:
        self.entered.set()
        self.go_on.wait(300)
        self.data += data

    def close(self) -> None:
        pass


def test_a_disk_that_hangs_costs_lines_and_no_time(tmp_path: Path) -> None:
    log = AccessLog(AccessLogConfig(str(tmp_path / "a.jsonl"), max_queued=3))
    slow = Slow()
    log._file = slow  # type: ignore[assignment]
    log.write(line(0))
    assert slow.entered.wait(300)
    for number in range(1, 9):
        log.write(line(number))
    assert log.dropped_total == 5
    slow.go_on.set()
    log.close()
    assert [json.loads(text)["number"] for text in slow.data.splitlines()] == [0, 1, 2, 3]
    assert (log.lines_total, log.dropped_total) == (4, 5)


def test_a_full_disk_costs_lines_until_there_is_room(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.jsonl"
    log = AccessLog(AccessLogConfig(str(path)))
    log.write(line(1))
    until(lambda: log.lines_total == 1)
    path.unlink()
    path.mkdir()
    for number in (2, 3):
        log.write(line(number))
        until(lambda: log.dropped_total == number - 1)  # noqa: B023  # called at once
    path.rmdir()
    log.write(line(4))
    log.close()
    assert numbers(path) == [4]
    assert len([one for one in caplog.records if "its lines are dropped" in one.message]) == 1


def test_a_file_that_cannot_be_written_is_said_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"--access-log .*no-such-folder.*No such file"):
        AccessLog(AccessLogConfig(str(tmp_path / "no-such-folder" / "a.jsonl")))


def test_lines_go_to_standard_output_too(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    log = AccessLog(AccessLogConfig("-"))
    log.write(line(7))
    log.close()
    assert json.loads(capfdbinary.readouterr().out)["number"] == 7


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="max_old_files is 0"):
        AccessLogConfig("-", max_old_files=0)
