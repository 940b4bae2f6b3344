"""The lines of a batch's input: cut out of blocks of bytes, parsed, and scanned for those that are no request.

Which lines are bad depends on the file alone, so that a dispatcher that takes a job over finds the same ones.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from hashlib import blake2b

import msgspec

from services.dispatcher.batches.records import MOST_ERRORS_SHOWN, LineError

MOST_ID_CHARACTERS = 512


class BatchLine(msgspec.Struct, frozen=True):
    """One request of a batch: `body` is the JSON of a request to `url`."""

    custom_id: str
    url: str
    body: msgspec.Raw
    method: str = "POST"


class BadLine(Exception):
    """A line that is no request of this batch."""

    def __init__(self, code: str, message: str, custom_id: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.custom_id = custom_id


@dataclass(frozen=True, slots=True)
class InputLine:
    """A line that is not empty: its number from 1, and the byte after it. `data` None: it is too long."""

    number: int
    stop: int
    data: bytes | None


async def input_lines(
    blocks: AsyncGenerator[bytes, None], most_bytes: int, lines_read: int = 0, offset: int = 0
) -> AsyncGenerator[InputLine, None]:
    """The lines in `blocks`, which begin at byte `offset` after `lines_read` lines. Bounded: a line of more than
    `most_bytes` is skipped, not kept.
    """
    cutter = _LineCutter(most_bytes, lines_read, offset)
    async with aclosing(blocks):
        async for block in blocks:
            for line in cutter.push(block):
                yield line
    for line in cutter.finish():
        yield line


class _LineCutter:
    """Cuts blocks into lines. Keeps the beginning of the line that is not whole yet."""

    def __init__(self, most_bytes: int, lines_read: int, offset: int) -> None:
        self._most_bytes = most_bytes
        self._number = lines_read
        self._stop = offset
        self._rest = b""
        self._skipped = 0

    def push(self, block: bytes) -> list[InputLine]:
        first, newline, later = block.partition(b"\n")
        if not newline:
            self._keep(block)
            return []
        self._keep(first)
        lines = [self._line(1)]
        *whole, rest = later.split(b"\n")
        for text in whole:
            self._keep(text)
            lines.append(self._line(1))
        self._keep(rest)
        return [line for line in lines if line is not None]

    def finish(self) -> list[InputLine]:
        line = self._line(0)
        return [line] if line is not None else []

    def _keep(self, text: bytes) -> None:
        self._rest += text
        if len(self._rest) > self._most_bytes:
            self._skipped += len(self._rest)
            self._rest = b""

    def _line(self, newline: int) -> InputLine | None:
        data, skipped = self._rest, self._skipped
        self._rest, self._skipped = b"", 0
        self._number += 1
        self._stop += len(data) + skipped + newline
        if skipped:
            return InputLine(self._number, self._stop, None)
        return InputLine(self._number, self._stop, data) if data.strip() else None


def parse_line(line: InputLine, endpoint: str) -> BatchLine:
    """The request in a line.

    Raises:
        BadLine: it is too long, no JSON object of a request, or for another endpoint.
    """
    if line.data is None:
        raise BadLine("line_too_long", "the line is longer than any request that is taken")
    try:
        parsed = msgspec.json.decode(line.data, type=BatchLine)
    except UnicodeDecodeError as error:
        raise BadLine("invalid_json_line", f"not UTF-8: {error.reason}") from error
    except msgspec.ValidationError as error:
        raise BadLine("invalid_request_line", str(error), _custom_id(line.data)) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadLine("invalid_json_line", str(error)) from error
    problem = _problem(parsed, endpoint)
    if problem is not None:
        raise BadLine(*problem, parsed.custom_id or None)
    return parsed


def _problem(line: BatchLine, endpoint: str) -> tuple[str, str] | None:
    if not 1 <= len(line.custom_id) <= MOST_ID_CHARACTERS:
        return "invalid_custom_id", f"custom_id must have 1 to {MOST_ID_CHARACTERS} characters"
    if line.method != "POST":
        return "invalid_method", f"method must be POST, not {line.method[:40]!r}"
    if line.url != endpoint:
        return "mismatched_endpoint", f"url must be the batch's endpoint {endpoint}, not {line.url[:80]!r}"
    if not bytes(line.body).lstrip().startswith(b"{"):
        return "invalid_request_line", "body must be an object"
    return None


class _Named(msgspec.Struct):
    custom_id: str | None = None


def _custom_id(data: bytes) -> str | None:
    """The line's custom_id, if at least that can be read."""
    try:
        return msgspec.json.decode(data, type=_Named).custom_id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


DUPLICATE = "the custom_id stands in an earlier line too"


class InputScan:
    """What a pass over all lines tells: how many there are, which are bad, and which repeat a custom_id.

    Of a custom_id 16 bytes of its hash are kept; of bad lines the number, and of the first ones what is wrong.
    """

    def __init__(self, endpoint: str) -> None:
        self.total = 0
        self.bad_lines = 0
        self.errors: list[LineError] = []
        self.duplicates: set[int] = set()
        self._endpoint = endpoint
        self._seen: set[bytes] = set()

    def add(self, line: InputLine) -> None:
        """Take the next line."""
        self.total += 1
        try:
            custom_id: str | None = parse_line(line, self._endpoint).custom_id
        except BadLine as bad:
            custom_id = bad.custom_id
            self._note(LineError(line.number, bad.code, bad.message))
            is_bad = True
        else:
            is_bad = False
        if custom_id is None:
            return
        digest = blake2b(custom_id.encode(errors="surrogatepass"), digest_size=16).digest()
        if digest in self._seen:
            self.duplicates.add(line.number)
            if not is_bad:
                self._note(LineError(line.number, "duplicate_custom_id", DUPLICATE))
        self._seen.add(digest)

    def request(self, line: InputLine) -> BatchLine:
        """The request in a line that was scanned.

        Raises:
            BadLine: as `parse_line`; or its custom_id stands in an earlier line. A custom_id that does is left out:
                it has its result already.
        """
        is_duplicate = line.number in self.duplicates
        try:
            parsed = parse_line(line, self._endpoint)
        except BadLine as bad:
            raise BadLine(bad.code, bad.message, None if is_duplicate else bad.custom_id) from bad
        if is_duplicate:
            raise BadLine("duplicate_custom_id", DUPLICATE)
        return parsed

    def forget_ids(self) -> None:
        """The pass is over: only the numbers of the lines that repeat one are still needed."""
        self._seen.clear()

    def _note(self, error: LineError) -> None:
        self.bad_lines += 1
        if len(self.errors) < MOST_ERRORS_SHOWN:
            self.errors.append(error)
