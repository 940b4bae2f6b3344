"""What a client really sends: a TCP proxy in front of the HTTP door that keeps the bytes of both directions.

The bytes are parsed after the client is done, so that nothing between client and door is changed or delayed for it.
"""

import asyncio
import http.client
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

PIECE_BYTES = 1 << 16
MOST_BYTES = 64 << 20
"""Of one connection and direction; what comes after is passed on and not kept."""


@dataclass(frozen=True, slots=True)
class RecordedExchange:
    """One request as it was sent, and the status of its answer. `body` is None where it is no JSON object."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any] | None
    status: int
    answer: bytes = field(repr=False)


class RecordingProxy:
    """Owns a listening socket and its connections. Keeps what went through them."""

    def __init__(self, host: str, port: int) -> None:
        self._door = (host, port)
        self._tapes: list[tuple[bytearray, bytearray]] = []
        self._server: asyncio.Server | None = None
        self.url = ""

    async def start(self) -> None:
        """Listen on a free port of this machine."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.url = f"http://{host}:{port}"

    async def stop(self) -> None:
        """Take no more connections."""
        if self._server is not None:
            self._server.close()

    def exchanges(self) -> list[RecordedExchange]:
        """Every request so far, in the order of connections."""
        return [exchange for sent, answered in self._tapes for exchange in _exchanges(bytes(sent), bytes(answered))]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent, answered = tape = (bytearray(), bytearray())
        self._tapes.append(tape)
        door_reader, door_writer = await asyncio.open_connection(*self._door)
        await asyncio.gather(_pump(reader, door_writer, sent), _pump(door_reader, writer, answered))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tape: bytearray) -> None:
    """Pass bytes on until one end closes; then the other end closes too."""
    try:
        while data := await reader.read(PIECE_BYTES):
            if len(tape) < MOST_BYTES:
                tape += data
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass  # either end may leave at any time: the other learns it by the close
    finally:
        writer.close()


def _exchanges(sent: bytes, answered: bytes) -> Iterator[RecordedExchange]:
    requests, answers = io.BytesIO(sent), io.BytesIO(answered)
    while line := requests.readline():
        method, path, _ = line.decode("latin-1").split(" ", 2)
        headers = {name.lower(): value for name, value in http.client.parse_headers(requests).items()}
        data = _chunked(requests) if "transfer-encoding" in headers else requests.read(_length(headers))
        status, answer = _answer(answers, method)
        yield RecordedExchange(method, path, headers, _object(data), status, answer)


def _length(headers: dict[str, str]) -> int:
    return int(headers.get("content-length", "0"))


def _chunked(requests: io.BytesIO) -> bytes:
    data = b""
    while size := int(requests.readline().split(b";")[0] or b"0", 16):
        data += requests.read(size)
        requests.readline()
    requests.readline()
    return data


def _answer(answers: io.BytesIO, method: str) -> tuple[int, bytes]:
    """The next answer's status and body; status 0: the client left before it came."""
    answer = http.client.HTTPResponse(_Socket(answers), method=method)  # type: ignore[arg-type]  # only makefile is used
    try:
        answer.begin()
        return answer.status, answer.read()
    except http.client.IncompleteRead as error:
        return answer.status, error.partial
    except (http.client.HTTPException, ConnectionError):
        return 0, b""


class _Socket:
    """Bytes for `HTTPResponse`, which reads a socket's file and leaves it open for the next answer."""

    def __init__(self, held: io.BytesIO) -> None:
        self._held = held

    def makefile(self, mode: str) -> io.BufferedReader:
        return _Kept(self._held)  # type: ignore[return-value]  # has what HTTPResponse calls


class _Kept:
    def __init__(self, held: io.BytesIO) -> None:
        self.read, self.readline, self.read1, self.readinto = held.read, held.readline, held.read1, held.readinto

    def flush(self) -> None: ...

    def close(self) -> None: ...


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
