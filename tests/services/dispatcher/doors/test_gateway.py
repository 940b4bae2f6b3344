"""The gateway: seeds of retries, cancelling by id, and what a stop leaves to other dispatchers."""

import asyncio

import pytest
from tokenizers import Tokenizer as Inner
from tokenizers import decoders, models, pre_tokenizers

from dunlin.effects import Address, Message
from dunlin.limits import InvalidField
from dunlin.messages.dispatch import Adopt, AdoptedElsewhere, NotHeld
from dunlin.messages.door import RejectionCode
from dunlin.messages.types import FinishReason, i32
from dunlin.text.tokenizer import Tokenizer
from services.dispatcher.admission.refusals import STOPPING_TEXT, DoorError
from services.dispatcher.doors.generation.idempotency import RetryIdentity, derived_seed
from services.dispatcher.doors.generation.settings import RequestSettings
from services.dispatcher.doors.response_stream import ResponseStream
from services.dispatcher.lifecycle import adoption
from tests.services.dispatcher.door_requests import MODEL, with_doors
from tests.services.dispatcher.factories import A
from tests.services.dispatcher.running_doors import Doors, model

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


async def stopped(cluster: Doors) -> tuple[ResponseStream, ResponseStream]:
    """The streams of a request and of an idempotent one that run when the doors stop."""
    cluster.instance.held = True
    _, own = await cluster.gateway.submit(TOKENS, SETTINGS, "test")
    _, idempotent = await cluster.gateway.submit(TOKENS, SETTINGS, "test", retry=RetryIdentity("k"))
    cluster.gateway.shut_down()
    return own, idempotent


def test_after_the_stop_requests_are_refused_and_idempotent_ones_run_on() -> None:
    async def test(cluster: Doors) -> None:
        own, idempotent = await stopped(cluster)
        await asyncio.sleep(0)
        assert (own.is_abandoned, idempotent.is_abandoned) == (False, True)
        assert STOPPING_TEXT in (await own.next()).detail
        with pytest.raises(DoorError) as raised:
            await cluster.gateway.submit(TOKENS, SETTINGS, "test")
        assert raised.value.code is RejectionCode.UNAVAILABLE
        assert [request.key for request in cluster.core.journal] == [idempotent.request]

    with_doors(test)


def test_a_reader_that_comes_after_the_end_of_the_host_still_hears_that_its_request_runs_on() -> None:
    """A slow client holds its reader up, and the host closes its outlets meanwhile."""

    async def test(cluster: Doors) -> None:
        own, idempotent = await stopped(cluster)
        cluster.host.close()
        assert STOPPING_TEXT in (await own.next()).detail
        with pytest.raises(DoorError, match=STOPPING_TEXT):
            await idempotent.next()

    with_doors(test)


def test_a_request_whose_key_means_another_one_elsewhere_by_now_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adoption, "READOPT_AFTER_S", 0.0)

    async def test(cluster: Doors) -> None:
        instance, host = cluster.instance, cluster.host
        instance.held = True
        client, stream = await cluster.gateway.submit(TOKENS, SETTINGS, "test", retry=RetryIdentity("k"))
        (place,) = instance.placed
        take = instance.send

        def send(message: Message) -> bool:
            if isinstance(message, Adopt):
                host.deliver(A, NotHeld(message.request, message.attempt, conflict=True))
                return True
            return take(message)

        monkeypatch.setattr(instance, "send", send)
        host.deliver(A, AdoptedElsewhere(place.request, place.attempt, Address("dispatcher", "other", 1)))
        piece = await asyncio.wait_for(stream.next(), 10.0)
        assert piece.finish is FinishReason.ERROR
        assert piece.detail.startswith("the idempotency key 'k' was used for another request")
        cluster.gateway.close(client)

    with_doors(test)


def test_tokens_outside_the_vocabulary_are_refused_before_the_core_sees_them() -> None:
    async def test(cluster: Doors) -> None:
        with pytest.raises(InvalidField):
            await cluster.gateway.submit(TOKENS, RequestSettings(stop_ids=i32((999_999,))), "test")
        assert len(cluster.core.journal) == 0

    with_doors(test)


def test_a_text_goes_on_after_its_prompt_with_the_space_of_its_first_word() -> None:
    """As Llama 2, Mistral, Mixtral and Phi-3 spell words: the mark of a space is stripped where a text begins."""
    inner = Inner(models.BPE({"a": 0, "▁the": 1, "▁bird": 2, "▁sea": 3}, []))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])

    async def test(cluster: Doors) -> None:
        cluster.instance.text = [2, 3]
        made = await cluster.client().completions.create(model=MODEL, prompt=[1], max_tokens=2, echo=True)
        assert made.choices[0].text == "the bird sea"

    with_doors(test, served=model(tokenizer=Tokenizer(inner)))
