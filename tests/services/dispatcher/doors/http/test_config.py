"""The HTTP door's settings: what cannot be is refused by name."""

from typing import Any

import pytest

from services.dispatcher.__main__ import parser
from services.dispatcher.doors.http.config import HttpConfig


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_connections", 0), ("max_body_bytes", 0), ("header_timeout_s", 0), ("idle_timeout_s", float("inf"))],
)
def test_limits_that_limit_nothing_or_everything_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        HttpConfig(**{name: value})


def test_what_is_no_origin_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="'https://a/' is not an origin"):
        HttpConfig(origins=("https://a", "https://a/"))
    with pytest.raises(SystemExit):
        parser().parse_args(["--name", "d", "--listen", "h:1", "--etcd", "h:2", "--cors", "https://a/"])
    assert "'https://a/' is not an origin: give scheme://host[:port]" in capsys.readouterr().err
