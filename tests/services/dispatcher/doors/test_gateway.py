"""The gateway: seeds of retries, cancelling by id, and what a stop leaves to other dispatchers."""

import asyncio

import pytest

from dunlin.limits import InvalidField
from dunlin.messages.door import RejectionCode
from dunlin.messages.types import i32
from services.dispatcher.admission.refusals import STOPPING_TEXT, DoorError
from services.dispatcher.doors.generation.idempotency import RetryIdentity, derived_seed
from services.dispatcher.doors.generation.settings import RequestSettings
from tests.services.dispatcher.door_requests import with_doors
from tests.services.dispatcher.running_doors import Doors

TOKENS = i32((5, 6, 7))
SETTINGS = RequestSettings(max_tokens=30)


def test_the_seed_is_the_clients_or_follows_from_the_idempotency_key_or_is_random() -> None:
    async def test(cluster: Doors) -> None:
        gateway, retry = cluster.gateway, RetryIdentity("k")
        assert gateway.with_seed(RequestSettings(seed=7), retry).seed == 7
        assert gateway.with_seed(RequestSettings(tenant="t"), retry).seed == derived_seed("t", "k")
        assert gateway.with_seed(SETTINGS).seed != gateway.with_seed(SETTINGS).seed

    with_doors(test)


def test_a_request_is_cancelled_by_its_id() -> None:
    async def test(cluster: Doors) -> None:
        cluster.instance.held = True
        client, stream = await cluster.gateway.submit(TOKENS, SETTINGS, "test")
        assert not await cluster.gateway.cancel("req-2a-99")
        assert not await cluster.gateway.cancel(stream.request, "another tenant")
        assert await cluster.gateway.cancel(stream.request)
        cluster.gateway.close(client)

    with_doors(test)


def test_after_the_stop_requests_are_refused_and_idempotent_ones_run_on() -> None:
    async def test(cluster: Doors) -> None:
        cluster.instance.held = True
        _, own = await cluster.gateway.submit(TOKENS, SETTINGS, "test")
        _, idempotent = await cluster.gateway.submit(TOKENS, SETTINGS, "test", retry=RetryIdentity("k"))
        cluster.gateway.shut_down()
        await asyncio.sleep(0)
        assert (own.is_abandoned, idempotent.is_abandoned) == (False, True)
        assert STOPPING_TEXT in (await own.next()).detail
        with pytest.raises(DoorError) as raised:
            await cluster.gateway.submit(TOKENS, SETTINGS, "test")
        assert raised.value.code is RejectionCode.UNAVAILABLE
        assert [request.key for request in cluster.core.journal] == [idempotent.request]

    with_doors(test)


def test_tokens_outside_the_vocabulary_are_refused_before_the_core_sees_them() -> None:
    async def test(cluster: Doors) -> None:
        with pytest.raises(InvalidField):
            await cluster.gateway.submit(TOKENS, RequestSettings(stop_ids=i32((999_999,))), "test")
        assert len(cluster.core.journal) == 0

    with_doors(test)
