"""Bare bytes at the HTTP door: requests, limits that no test meets by chance, and how an answer is read."""

import asyncio
import json
import logging
from collections.abc import Callable

import pytest
import uvloop

from services.dispatcher.doors.http.config import HttpConfig

LONG_S = 3600.0
"""Longer than any test runs: what is not meant to end a connection does not."""
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
Loop = Callable[[], asyncio.AbstractEventLoop]


def limits(**changes: float) -> HttpConfig:
    periods = dict.fromkeys(("header_timeout_s", "idle_timeout_s", "body_timeout_s", "write_timeout_s"), LONG_S)
    return HttpConfig(**{**periods, **changes})  # type: ignore[arg-type]


def error_of(answer: bytes) -> tuple[int, dict[str, str | None]]:
    """Status and error of the one answer in these bytes."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"Content-Type: application/json" in head
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return int(head.split()[1]), error


def lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What the door and aiohttp logged; asyncio may still complain of another test's client."""
    return [record for record in caplog.records if record.name != "asyncio"]
