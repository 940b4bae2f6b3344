"""Frames come out whole however the bytes arrive."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dunlin.engine.process.frames import FRAME_BYTES_MAX, FrameError, FrameReader, frame


@given(st.lists(st.binary(max_size=20), max_size=6), st.data())
def test_any_cut_gives_the_same_frames(bodies: list[bytes], data: st.DataObject) -> None:
    stream, reader = b"".join(map(frame, bodies)), FrameReader()
    got: list[bytes] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        got += reader.feed(stream[:size])
        stream = stream[size:]
    assert got == bodies


def test_a_length_beyond_the_bound_is_refused() -> None:
    with pytest.raises(FrameError, match="at most"):
        list(FrameReader().feed((FRAME_BYTES_MAX + 1).to_bytes(4, "little")))
    with pytest.raises(FrameError, match="at most"):
        frame(bytes(FRAME_BYTES_MAX + 1))
