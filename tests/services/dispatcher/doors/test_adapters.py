"""Adapters at the doors: listed beside the model, named by a request's `model`, submitted by their digests."""

from typing import Any

import openai
import pytest

from dunlin.client import AsyncClient
from dunlin.client.errors import DunlinError
from services.dispatcher.doors.preprocess.pool import PreprocessLimits
from tests.services.dispatcher.door_requests import MODEL, post, with_doors
from tests.services.dispatcher.running_doors import Doors, model

ADAPTERS = {"terse": "aa" * 16, "org/kind": "bb" * 16}
CHOICES = {MODEL: "", **ADAPTERS}
SERVED: dict[str, Any] = {"served": model(adapters=ADAPTERS)}


def placed(cluster: Doors) -> list[str]:
    return [place.adapter for place in cluster.instance.placed]


def test_the_model_and_its_adapters_are_listed() -> None:
    async def test(cluster: Doors) -> None:
        listed = [one async for one in cluster.client().models.list()]
        assert [one.id for one in listed] == [*CHOICES]
        found = await cluster.client().models.retrieve("org/kind")
        assert (found.id, found.model_extra and found.model_extra["parent"]) == ("org/kind", MODEL)
        plain = await cluster.client().models.retrieve(MODEL)
        assert "parent" not in (plain.model_extra or {})

    with_doors(test, **SERVED)


@pytest.mark.parametrize("inline_bytes", [0, 8192])
def test_a_request_runs_with_the_adapter_that_its_model_names(inline_bytes: int) -> None:
    async def test(cluster: Doors) -> None:
        asked = cluster.client()
        for name in CHOICES:
            text = await asked.completions.create(model=name, prompt="x", max_tokens=3)
            said = await asked.chat.completions.create(
                model=name, messages=[{"role": "user", "content": "Hi"}], max_tokens=3
            )
            chunks = [
                chunk
                async for chunk in await asked.completions.create(model=name, prompt="x", max_tokens=3, stream=True)
            ]
            assert {text.model, said.model, *(chunk.model for chunk in chunks)} == {name}
        assert placed(cluster) == [digest for digest in CHOICES.values() for _ in range(3)]
        _, answer, _ = await post(cluster, "/v1/completions", {"prompt": "x", "max_tokens": 3})
        assert (answer["model"], placed(cluster)[-1]) == (MODEL, "")

    with_doors(test, limits=PreprocessLimits(inline_bytes=inline_bytes), **SERVED)


def test_another_name_is_refused_with_the_names_there_are() -> None:
    async def test(cluster: Doors) -> None:
        with pytest.raises(openai.NotFoundError, match=f"'{MODEL}', 'terse', 'org/kind' are served") as caught:
            await cluster.client().completions.create(model="aa" * 16, prompt="x")
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
        async with AsyncClient(cluster.endpoint) as sdk:
            with pytest.raises(DunlinError, match="'kind' does not exist here"):
                await sdk.generate("x", model="kind")
        assert cluster.instance.placed == []

    with_doors(test, **SERVED)


def test_the_sdk_names_and_lists_them() -> None:
    async def test(cluster: Doors) -> None:
        async with AsyncClient(cluster.endpoint) as sdk:
            assert (await sdk.info()).adapters == tuple(ADAPTERS)
            for name in ("", *CHOICES):
                await sdk.generate("x", max_tokens=2, model=name)
            await sdk.chat([("user", "Hi")], max_tokens=2, model="terse")
        assert placed(cluster) == ["", *CHOICES.values(), ADAPTERS["terse"]]

    with_doors(test, **SERVED)


def test_one_idempotency_key_is_for_one_adapter() -> None:
    async def test(cluster: Doors) -> None:
        async with AsyncClient(cluster.endpoint) as sdk:
            first = await sdk.generate("x", max_tokens=3, model="terse", idempotency_key="k")
            again = await sdk.generate("x", max_tokens=3, model="terse", idempotency_key="k")
            assert first.text == again.text
            with pytest.raises(DunlinError, match="idempotency"):
                await sdk.generate("x", max_tokens=3, idempotency_key="k")
        assert placed(cluster) == [ADAPTERS["terse"]]

    with_doors(test, **SERVED)
