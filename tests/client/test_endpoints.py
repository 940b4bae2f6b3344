"""The endpoints of a cluster: their order after failures."""

import pytest

from dunlin.client.endpoints import Endpoints
from dunlin.client.errors import DunlinError


def test_endpoints_are_left_in_turn() -> None:
    endpoints = Endpoints("a:1, b:2,,c:3,a:1")
    assert endpoints.all == ("a:1", "b:2", "c:3")
    endpoints.mark_failed("a:1")
    endpoints.mark_failed("a:1")  # another stream's late news
    assert endpoints.failover_order() == ("b:2", "c:3", "a:1")
    endpoints.mark_failed("b:2")
    endpoints.mark_failed("c:3")
    assert endpoints.current == "a:1"
    assert Endpoints(["x:1", "y:2"]).all == ("x:1", "y:2")
    with pytest.raises(DunlinError, match="no endpoint"):
        Endpoints(" ,")
