"""Log lines about peers: one a second, on one line, and none is forgotten in the count."""

import logging

import pytest

from services.dispatcher.doors.http.peer_log import PeerLog
from tests.services.dispatcher.raw_http import lines


def test_one_line_a_second_and_a_count_of_the_others(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 100.0
    complaints = PeerLog(lambda: now_s)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            complaints.warn("10.0.0.1", "first")
        now_s = 101.0
        complaints.warn("10.0.0.2", "second")
        now_s = 102.5
        complaints.warn("", "third")
    assert [record.getMessage() for record in lines(caplog)] == [
        "HTTP: 10.0.0.1: first",
        "HTTP: 10.0.0.2: second (and 4 more since the last such line)",
        "HTTP: a peer: third",
    ]


def test_a_peer_decides_neither_how_long_a_line_is_nor_where_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        PeerLog(lambda: 0.0).warn("x", "a\r\nERROR forged " + "b" * 1000)
    assert caplog.records[0].getMessage() == "HTTP: x: a ERROR forged " + "b" * 185
