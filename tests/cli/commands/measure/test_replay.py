"""`dunlin replay` without a cluster."""

import pytest

from cli.common.errors import USAGE
from cli.main import main


def test_the_http_door_of_an_endpoint_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("replay", "poisson:rate=9,duration=9", "--door", "http", "--endpoint", "127.0.0.1:1")) == USAGE
    assert "drop --endpoint" in capsys.readouterr().err
