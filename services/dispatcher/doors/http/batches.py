"""OpenAI's /v1/files and /v1/batches over HTTP. `doors/batches` does the work."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from aiohttp import BodyPartReader, web

from dunlin.limits import InvalidField, brief_repr
from services.dispatcher.batches.records import FileRecord
from services.dispatcher.doors.authentication import Authenticator
from services.dispatcher.doors.batches.objects import batch_json, file_object_json
from services.dispatcher.doors.batches.service import BatchService, page_start, parse_window
from services.dispatcher.doors.http.config import HttpConfig
from services.dispatcher.doors.http.receive import read_json_body
from services.dispatcher.doors.openai.errors import INVALID_REQUEST, HttpError
from services.dispatcher.doors.openai.reply import Json, error_body

MOST_BODY_BYTES = 64 << 10
MOST_FIELD_BYTES = 1 << 10
MOST_LISTED = 10_000
CREATE_FIELDS = ("input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after")


@dataclass
class UploadForm:
    """The fields of an upload that have come so far. The content of `file` is stored, and it is not kept yet."""

    purpose: str = ""
    file: FileRecord | None = None

    def checked(self) -> FileRecord:
        """The file to keep, once all fields have come. Raises InvalidField."""
        if self.file is None:
            raise InvalidField("file", "is missing")
        if self.purpose != "batch":
            raise InvalidField("purpose", f"must be batch, not {brief_repr(self.purpose)}")
        return self.file


class BatchRoutes:
    """The handlers. `config` has the deadlines for bodies."""

    def __init__(self, batches: BatchService, authenticator: Authenticator, config: HttpConfig) -> None:
        self._batches = batches
        self._authenticator = authenticator
        self._config = config

    def routes(self) -> list[web.RouteDef]:
        """For the HTTP door."""
        return [
            web.post("/v1/files", self._upload),
            web.get("/v1/files", self._list_files),
            web.get("/v1/files/{file}", self._file),
            web.delete("/v1/files/{file}", self._delete_file),
            web.get("/v1/files/{file}/content", self._content),
            web.post("/v1/batches", self._create),
            web.get("/v1/batches", self._list),
            web.get("/v1/batches/{batch}", self._get),
            web.post("/v1/batches/{batch}/cancel", self._cancel),
        ]

    # --- files ---

    async def _upload(self, request: web.Request) -> web.Response:
        if not request.content_type.startswith("multipart/"):
            text = "the body must be multipart/form-data with the fields purpose and file"
            raise HttpError(415, error_body(text, INVALID_REQUEST, None, "unsupported_media_type"))
        form = UploadForm()
        try:
            await self._receive(request, form)
            made = form.checked()
        except BaseException:
            if form.file is not None:
                self._batches.discard(form.file)
            raise
        await self._batches.keep(made)
        return web.json_response(file_object_json(made))

    async def _receive(self, request: web.Request, form: UploadForm) -> None:
        """Read all fields into `form`: the purpose may come behind the file, for their order is the client's."""
        try:
            reader = await request.multipart()
            while (part := await self._within(reader.next())) is not None:
                if not isinstance(part, BodyPartReader):
                    raise InvalidField("file", "must not be a multipart body itself")
                if part.name == "purpose":
                    form.purpose = await self._field(part)
                elif part.name == "file" and form.file is None:
                    blocks = self._blocks(part)
                    form.file = await self._batches.receive(self._tenant(request), part.filename or "file", blocks)
        except InvalidField:  # a ValueError too, and not multipart's
            raise
        except ValueError as error:
            raise HttpError(400, error_body(f"the body is no multipart body: {error}", INVALID_REQUEST)) from error

    async def _field(self, part: BodyPartReader) -> str:
        """A short field, which may come in pieces; of a longer one the beginning."""
        data = b""
        while len(data) < MOST_FIELD_BYTES and (piece := await self._within(part.read_chunk(MOST_FIELD_BYTES))):
            data += piece
        return data.decode(errors="replace")

    async def _blocks(self, part: BodyPartReader) -> AsyncGenerator[bytes, None]:
        while block := await self._within(part.read_chunk(256 << 10)):
            yield block

    async def _within(self, receiving: Any) -> Any:
        """The next part of a body, which may take as long as a whole small body. Raises HttpError."""
        try:
            async with asyncio.timeout(self._config.body_timeout_s):
                return await receiving
        except TimeoutError:
            text = f"nothing of the body came for {self._config.body_timeout_s:g} s"
            raise HttpError(408, error_body(text, INVALID_REQUEST)) from None

    async def _list_files(self, request: web.Request) -> web.Response:
        files = [file_object_json(file) for file in await self._batches.list_files(self._tenant(request))]
        purpose = request.query.get("purpose")
        shown = [file for file in files if purpose in (None, file["purpose"])]
        if request.query.get("order") == "asc":
            shown.reverse()
        start = page_start([one["id"] for one in shown], request.query.get("after", ""))
        stop = start + _limit(request.query, MOST_LISTED, MOST_LISTED)
        return _page(shown[start:stop], len(shown) > stop)

    async def _file(self, request: web.Request) -> web.Response:
        found = await self._batches.file(self._tenant(request), request.match_info["file"])
        return web.json_response(file_object_json(found))

    async def _delete_file(self, request: web.Request) -> web.Response:
        file = request.match_info["file"]
        await self._batches.delete_file(self._tenant(request), file)
        return web.json_response({"id": file, "object": "file", "deleted": True})

    async def _content(self, request: web.Request) -> web.StreamResponse:
        content = self._batches.content(self._tenant(request), request.match_info["file"])
        async with aclosing(content) as blocks:
            first = await anext(blocks, b"")  # errors come before the head
            response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
            await response.prepare(request)
            await response.write(first)
            async for block in blocks:
                await response.write(block)
            await response.write_eof()
        return response

    # --- batches ---

    async def _create(self, request: web.Request) -> web.Response:
        body = await read_json_body(request, MOST_BODY_BYTES, self._config.body_timeout_s)
        given = {name: value for name, value in body.items() if value is not None}
        for name in given:
            if name not in CREATE_FIELDS:
                raise InvalidField(name, "is not a field that is known here")
        if "output_expires_after" in given:
            raise InvalidField("output_expires_after", "is not supported here: results are kept as long as their batch")
        view = await self._batches.create(
            self._tenant(request),
            _string(given, "input_file_id"),
            _string(given, "endpoint"),
            parse_window(given.get("completion_window")),
            _mapping(given, "metadata"),
        )
        return web.json_response(batch_json(view))

    async def _list(self, request: web.Request) -> web.Response:
        limit = _limit(request.query, 20, 100)
        views, more = await self._batches.list_jobs(self._tenant(request), request.query.get("after", ""), limit)
        return _page([batch_json(view) for view in views], more)

    async def _get(self, request: web.Request) -> web.Response:
        return web.json_response(
            batch_json(await self._batches.get(self._tenant(request), request.match_info["batch"]))
        )

    async def _cancel(self, request: web.Request) -> web.Response:
        view = await self._batches.cancel(self._tenant(request), request.match_info["batch"])
        return web.json_response(batch_json(view))

    def _tenant(self, request: web.Request) -> str | None:
        return self._authenticator.authenticate(request.headers.get("Authorization"))


def _page(objects: list[Json], more: bool) -> web.Response:
    first, last = (objects[0]["id"], objects[-1]["id"]) if objects else (None, None)
    return web.json_response({"object": "list", "data": objects, "first_id": first, "last_id": last, "has_more": more})


def _limit(query: Mapping[str, str], default: int, most: int) -> int:
    given = query.get("limit", str(default))
    if not (given.isascii() and given.isdecimal() and len(given) <= 9 and 1 <= int(given) <= most):
        raise InvalidField("limit", f"must be a whole number from 1 to {most}")
    return int(given)


def _string(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str):
        raise InvalidField(name, "is required, a string" if value is None else "must be a string")
    return value


def _mapping(given: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = given.get(name, {})
    if not isinstance(value, Mapping):
        raise InvalidField(name, "must be an object of strings")
    return value
