"""The socket to a helper process: frames arrive whole, and an end in the middle of one is noticed. Its command line."""

import socket
import threading

import pytest

from services.dispatcher.doors.preprocess.helper import FRAME_HEADER, HelperProcess, receive_frame, send_frame
from services.dispatcher.doors.preprocess.preprocessor import BodyKind
from tests.services.dispatcher.running_doors import model


def test_a_frame_arrives_as_one_whatever_its_parts() -> None:
    ours, theirs = socket.socketpair()
    large = bytes(range(256)) * 8_192
    with ours, theirs:
        sending = threading.Thread(target=send_frame, args=(ours, 2, b"ab", b"", large))
        sending.start()
        kind, data = receive_frame(theirs)
        sending.join()
        assert (kind, bytes(data)) == (2, b"ab" + large)
        send_frame(ours, 0)
        assert receive_frame(theirs) == (0, bytearray())


@pytest.mark.parametrize("sent", [b"", FRAME_HEADER.pack(1, 9)[:4], FRAME_HEADER.pack(1, 9) + b"half"])
def test_a_socket_that_is_closed_in_a_frame_is_an_end(sent: bytes) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        ours.sendall(sent)
        ours.close()
        with pytest.raises(EOFError):
            receive_frame(theirs)


def test_a_model_may_be_called_anything() -> None:
    helper = HelperProcess(model(name="-m"), nice=0, within_s=300.0)
    try:
        read = helper.read(BodyKind.COMPLETION, [b'{"model": "-m", "prompt": "Once"}'])
        assert len(read.prompts) == 1
    finally:
        helper.kill()
