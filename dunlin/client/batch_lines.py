"""From a file or lines to the chunks of an upload, and from the chunks of results to lines."""

import json
from collections.abc import AsyncIterable, AsyncIterator, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dunlin.messages.batches import FileChunk

Line = Mapping[str, Any] | str | bytes
"""One line of a batch: an object, or the JSON of one."""
Source = str | Path | Iterable[Line]
"""A file's path, or the lines themselves."""
CHUNK_BYTES = 256 << 10


def can_repeat(source: Source | AsyncIterable[Line]) -> bool:
    """Whether the lines can be read a second time, as those of a file or a list."""
    return isinstance(source, str | Path | Collection)


def chunks_of(source: Source) -> Iterator[FileChunk]:
    """The file or the lines in chunks; the first has the name."""
    if isinstance(source, str | Path):
        yield FileChunk(b"", Path(source).name)
        with Path(source).open("rb") as file:
            while data := file.read(CHUNK_BYTES):
                yield FileChunk(data)
        return
    yield FileChunk(b"", "lines.jsonl")
    waiting = bytearray()
    for line in source:
        waiting += _encoded(line)
        if len(waiting) >= CHUNK_BYTES:
            yield FileChunk(bytes(waiting))
            waiting.clear()
    yield FileChunk(bytes(waiting))


async def async_chunks(source: Source | AsyncIterable[Line]) -> AsyncIterator[FileChunk]:
    if not isinstance(source, AsyncIterable):
        for chunk in chunks_of(source):
            yield chunk
        return
    yield FileChunk(b"", "lines.jsonl")
    async for line in source:
        yield FileChunk(_encoded(line))


def _encoded(line: Line) -> bytes:
    if isinstance(line, Mapping):
        return json.dumps(line).encode() + b"\n"
    data = line.encode() if isinstance(line, str) else line
    return data if data.endswith(b"\n") else data + b"\n"


def whole_lines(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The lines in parts that are cut anywhere."""
    rest = b""
    for part in parts:
        *whole, rest = (rest + part).split(b"\n")
        yield from whole
