"""Length-prefixed frames on a stream socket: four bytes of length, then the frame. Knows no message."""

import struct
from collections.abc import Iterator

FRAME_BYTES_MAX = 64 << 20
_LENGTH = struct.Struct("<I")


class FrameError(Exception):
    """The stream holds what cannot be a frame; it cannot be read any further."""


def frame(body: bytes) -> bytes:
    """`body` with its length before it.

    :raises FrameError: it is longer than `FRAME_BYTES_MAX`.
    """
    if len(body) > FRAME_BYTES_MAX:
        raise FrameError(f"a frame of {len(body)} bytes, at most {FRAME_BYTES_MAX} may be sent")
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Cuts a stream of bytes into frames, however it arrives."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take what was read; yields the frames that are now whole.

        :raises FrameError: a length beyond `FRAME_BYTES_MAX`.
        """
        self._buffer += data
        at = 0
        while len(self._buffer) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, at)
            if length > FRAME_BYTES_MAX:
                raise FrameError(f"a frame of {length} bytes, at most {FRAME_BYTES_MAX} are accepted")
            if len(self._buffer) - at - _LENGTH.size < length:
                break
            at += _LENGTH.size + length
            yield bytes(self._buffer[at - length : at])
        del self._buffer[:at]
