"""Two engine processes that have met."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dunlin.effects import Address
from dunlin.messages.engine import EngineReady, Meet, Met
from tests.engine.process.test_main import Child

FIRST, SECOND = Address("engine", "first"), Address("engine", "second")
WAIT_S = 600.0
"""Two engines start at once, perhaps on a busy machine."""

Pair = tuple[Child, Child]


@pytest.fixture
def two_engines(model: Path) -> Iterator[Callable[..., Pair]]:
    """Makes two engines that have met, as FIRST and SECOND; options as of `Child`."""
    children: list[Child] = []

    def make(**options: Any) -> Pair:
        children.extend((Child(model, **options), Child(model, **options)))
        agents = []
        for each in children:
            each.socket.settimeout(WAIT_S)
            ready = each.receive()
            assert isinstance(ready, EngineReady)
            agents.append(ready.agent)
        for each, peer, agent in zip(children, (SECOND, FIRST), reversed(agents), strict=True):
            each.send(Meet(peer, agent))
            assert each.receive() == Met(peer)
        return children[0], children[1]

    yield make
    for each in children:
        each.close()
