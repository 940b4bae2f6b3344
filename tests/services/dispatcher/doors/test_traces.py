"""A client's trace context reaches the dispatch, through both doors; a broken one is as good as none."""

import pytest

from dunlin.messages.public import GenerateRequest
from dunlin.wire.channels import open_channel
from dunlin.wire.rpc.methods import GENERATE, stub
from tests.services.dispatcher.door_requests import with_doors
from tests.services.dispatcher.running_doors import Doors

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CASES = pytest.mark.parametrize(("sent", "kept"), [(TRACE, TRACE), ("no-trace-at-all", ""), (None, "")])


@CASES
def test_http(sent: str | None, kept: str) -> None:
    async def test(cluster: Doors) -> None:
        headers = {"traceparent": sent} if sent else {}
        await cluster.client().completions.create(
            model="builtin:tiny", prompt="Hi", n=2, max_tokens=1, extra_headers=headers
        )
        assert [place.trace for place in cluster.instance.placed] == [kept, kept]

    with_doors(test)


@CASES
def test_grpc(sent: str | None, kept: str) -> None:
    async def test(cluster: Doors) -> None:
        metadata = (("traceparent", sent),) if sent else ()
        async with open_channel(cluster.endpoint) as channel:
            events = stub(channel, GENERATE)(GenerateRequest(prompt="Hi", max_tokens=1), metadata=metadata)
            assert [event async for event in events]
        assert [place.trace for place in cluster.instance.placed] == [kept]

    with_doors(test)
