"""A line waits while the cluster is full, is tried again when it fails by no fault of its own, and no longer."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dunlin.messages.dispatch import Failed
from dunlin.messages.door import RejectionCode
from services.dispatcher.admission.refusals import DoorError
from services.dispatcher.batches.input_lines import BatchLine
from services.dispatcher.batches.line_window import LineResult
from services.dispatcher.batches.records import JobRecord
from services.dispatcher.doors.batches import line_answers
from services.dispatcher.doors.batches.line_answers import LineAnswerer
from services.dispatcher.doors.preprocess.helper import HelperLost
from tests.services.dispatcher.running_doors import Doors, doors

JOB = JobRecord("batch_1", "", "/v1/completions", "file-1", 0.0, 60.0)
LINE = BatchLine("a", "/v1/completions", msgspec.Raw(b'{"prompt": "x", "max_tokens": 2}'))


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_answers, "LONGEST_WAIT_S", 0.0)


def with_answerer(test: Callable[[Doors, LineAnswerer], Awaitable[None]]) -> None:
    async def run() -> None:
        async with doors() as at:
            await test(at, LineAnswerer(at.gateway, 3, at.gateway.clock))

    asyncio.run(run())


def read(result: LineResult) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(result.text)
    return found


@pytest.mark.parametrize("code", [RejectionCode.FULL, RejectionCode.UNAVAILABLE, RejectionCode.QUOTA])
def test_a_line_waits_as_long_as_the_cluster_is_full(code: RejectionCode, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(at: Doors, answerer: LineAnswerer) -> None:
        submit, refusals = at.gateway.submit, [code] * 10

        async def refusing(*arguments: Any, **named: Any) -> Any:
            if refusals:
                raise DoorError(refusals.pop(), "not now", retry_after_s=100.0)
            return await submit(*arguments, **named)

        monkeypatch.setattr(at.gateway, "submit", refusing)
        result = await answerer.answer(JOB, 1, LINE)
        assert not result.is_error
        assert (result.tokens.output, refusals) == (2, [])
        assert read(result)["response"]["body"]["choices"][0]["text"] == at.text(2)

    with_answerer(test)


def test_a_line_that_fails_is_tried_so_often_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(at: Doors, answerer: LineAnswerer) -> None:
        at.instance.held = True
        answering = asyncio.create_task(answerer.answer(JOB, 1, LINE))
        for attempt in range(3):
            await at.instance.until(lambda attempt=attempt: len(at.instance.placed) == attempt + 1)
            place = at.instance.placed[-1]
            at.host.deliver(at.host.peers("instance")[0], Failed(place.request, place.attempt))
        result = await answering
        assert result.is_error
        assert read(result)["response"]["status_code"] == 500
        assert len(at.instance.placed) == 3

    with_answerer(test)


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (HelperLost(RejectionCode.UNAVAILABLE, "it died over this one", retry_after_s=1.0), 503, "died over this one"),
        (ZeroDivisionError("why"), 500, "its log says more"),
    ],
)
def test_a_line_that_breaks_what_reads_it_is_tried_so_often_and_no_more(
    error: Exception, status: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(at: Doors, answerer: LineAnswerer) -> None:
        tries = 0

        async def breaking(*body: Any) -> Any:
            nonlocal tries
            tries += 1
            raise error

        monkeypatch.setattr(at.gateway.preprocess_pool, "read", breaking)
        result = await asyncio.wait_for(answerer.answer(JOB, 1, LINE), 30)
        assert (result.is_error, tries) == (True, 3)
        response = read(result)["response"]
        assert (response["status_code"], said in response["body"]["error"]["message"]) == (status, True)

    with_answerer(test)


def test_a_line_whose_deadline_passed_is_not_tried_again() -> None:
    async def test(at: Doors, answerer: LineAnswerer) -> None:
        at.instance.held = True
        line = BatchLine("a", "/v1/completions", msgspec.Raw(b'{"prompt": "x", "timeout_s": 0.05}'))
        result = await answerer.answer(JOB, 1, line)
        assert (result.is_error, read(result)["response"]["status_code"]) == (True, 504)
        assert len(at.instance.placed) == 1

    with_answerer(test)


def test_a_line_that_runs_again_says_the_same() -> None:
    async def test(at: Doors, answerer: LineAnswerer) -> None:
        for _ in range(2):
            await answerer.answer(JOB, 1, LINE)
        await answerer.answer(JOB, 2, LINE)
        seeds = [place.sampling.seed for place in at.instance.placed]
        assert seeds[0] == seeds[1] != seeds[2]

    with_answerer(test)


@pytest.mark.parametrize(("share", "rises_after_s"), [(0.0, None), (0.1, 54.0), (1.0, 0.0)])
def test_a_line_may_rise_in_the_last_share_of_its_window(share: float, rises_after_s: float | None) -> None:
    async def test(at: Doors, answerer: LineAnswerer) -> None:
        urgent = LineAnswerer(at.gateway, 3, lambda: JOB.created_s, share)
        await urgent.answer(JOB, 1, LINE)
        asked = at.instance.placed[-1].rises_after_s
        assert (asked is None) == (rises_after_s is None)
        assert asked is None or rises_after_s is None or rises_after_s - 30 <= asked <= rises_after_s

    with_answerer(test)


def test_surrogates_in_names_stay_json(tmp_path: Path) -> None:
    async def test(at: Doors, answerer: LineAnswerer) -> None:
        line = BatchLine('quote " and \\ and \u2028', "/v1/completions", LINE.body)
        assert read(await answerer.answer(JOB, 1, line))["custom_id"] == line.custom_id

    with_answerer(test)
